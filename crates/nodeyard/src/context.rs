//! What commands share: the configuration, the output format and the log level.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use nodeyard_config::{Config, ConfigSource, ConfigStamp, Mode};
use nodeyard_model::ErrorCode;
use tracing::info;

use crate::cli::{ConfigFiles, DaemonFlags, GlobalArgs, Nodepool};
use crate::commands::config::print_diagnostics;
use crate::error_codes::WithCode as _;
use crate::output::OutputFormat;

/// The default configuration file of Nodepool's programs.
const SYSTEM_CONFIG: &str = "/etc/nodepool/nodepool.yaml";
/// The file that `nodeyard` tries before that.
const LOCAL_CONFIG: &str = "./nodepool.yaml";
const VARIABLE: &str = "NODEYARD_CONFIG";

#[derive(Debug)]
pub(crate) struct CommandContext {
    files: ConfigFiles,
    /// Whether to use `$NODEYARD_CONFIG` and the working directory, which Nodepool's programs do not.
    searches: bool,
    pub(crate) format: OutputFormat,
    pub(crate) verbose: u8,
}

impl CommandContext {
    /// Returns the configuration file to use, and what named it.
    fn find(&self) -> Option<(PathBuf, &'static str)> {
        if let Some(path) = &self.files.config {
            return Some((path.clone(), "--config"));
        }
        if self.searches {
            let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
            if let Some(path) = named {
                return Some((path.into(), "$NODEYARD_CONFIG"));
            }
            if Path::new(LOCAL_CONFIG).exists() {
                return Some((LOCAL_CONFIG.into(), "the working directory"));
            }
        }
        let system = Path::new(SYSTEM_CONFIG);
        system.exists().then(|| (system.into(), "the default"))
    }

    /// Returns the first configuration file of those that are searched, if there is one.
    pub(crate) fn source(&self) -> Option<ConfigSource> {
        let (main, named_by) = self.find()?;
        info!(file = %main.display(), from = named_by, "using configuration");
        Some(ConfigSource::new(main, self.files.secure.clone()))
    }

    /// As [`CommandContext::source`], for commands that need a configuration.
    pub(crate) fn required_source(&self) -> anyhow::Result<ConfigSource> {
        let source = self.source().with_context(|| self.not_found());
        source.code(ErrorCode::NoConfiguration)
    }

    /// Loads the configuration. Returns None if there is none, which is enough for the embedded store.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Arc<Config>>> {
        let loaded = self.source().as_ref().map(load).transpose()?;
        Ok(loaded.map(|(config, _)| config))
    }

    /// Like [`CommandContext::load`], for commands that need a configuration.
    pub(crate) fn require(&self) -> anyhow::Result<Arc<Config>> {
        let config = self.load()?.with_context(|| self.not_found());
        config.code(ErrorCode::NoConfiguration)
    }

    fn not_found(&self) -> String {
        let tried = match self.searches {
            true => format!(
                "--config (not given), ${VARIABLE} (not set), {LOCAL_CONFIG}, {SYSTEM_CONFIG}"
            ),
            false => format!("-c (not given), {SYSTEM_CONFIG}"),
        };
        format!("no configuration file found; tried {tried}")
    }

    /// Returns which configuration an error is about.
    pub(crate) fn config_note(&self) -> String {
        match self.find() {
            Some((path, from)) => format!("configuration: {}, from {from}", path.display()),
            None => self.not_found(),
        }
    }
}

/// Loads a configuration like the daemons: prints warnings and fails on errors only.
pub(crate) fn load(source: &ConfigSource) -> anyhow::Result<(Arc<Config>, ConfigStamp)> {
    let loaded = nodeyard_config::load(source, Mode::Daemon);
    print_diagnostics(&loaded);
    match loaded.config {
        Some(config) => Ok((Arc::new(config), loaded.stamp)),
        None => Err(anyhow!("invalid configuration {}", source.main.display()))
            .code(ErrorCode::BadConfiguration),
    }
}

impl From<&GlobalArgs> for CommandContext {
    fn from(global: &GlobalArgs) -> Self {
        Self {
            searches: true,
            files: global.files.clone(),
            format: global.format,
            verbose: global.verbose,
        }
    }
}

impl From<&Nodepool> for CommandContext {
    fn from(args: &Nodepool) -> Self {
        Self {
            searches: false,
            files: args.files.clone(),
            format: args.format,
            verbose: if args.debug { 2 } else { 0 },
        }
    }
}

impl From<&DaemonFlags> for CommandContext {
    fn from(flags: &DaemonFlags) -> Self {
        Self {
            searches: false,
            files: flags.files.clone(),
            format: OutputFormat::Table,
            verbose: u8::from(flags.debug),
        }
    }
}
