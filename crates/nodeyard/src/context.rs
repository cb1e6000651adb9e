//! What a command needs to know beside its own arguments: above all, its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use nodeyard_config::{Config, Mode, Source, Stamp};

use crate::cli::{DaemonFlags, Files, Global, Nodepool};
use crate::commands::config::print_diagnostics;
use crate::output::Format;

/// Where daemons and commands look for their configuration unless told otherwise.
const DEFAULT_CONFIG: &str = "/etc/nodepool/nodepool.yaml";

#[derive(Debug)]
pub(crate) struct Context {
    files: Files,
    pub(crate) format: Format,
    pub(crate) verbose: u8,
}

impl Context {
    /// The configuration that was named, or else the default one if it exists.
    pub(crate) fn source(&self) -> Option<Source> {
        let default = || Some(PathBuf::from(DEFAULT_CONFIG)).filter(|path| path.exists());
        let main = self.files.config.clone().or_else(default)?;
        Some(Source::new(main, self.files.secure.clone()))
    }

    /// The same for those who cannot do without: a missing default file is an error, too.
    pub(crate) fn required_source(&self) -> Source {
        let main = self
            .files
            .config
            .as_deref()
            .unwrap_or(Path::new(DEFAULT_CONFIG));
        Source::new(main, self.files.secure.clone())
    }

    /// None if there is no configuration, which is enough for the embedded store.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Arc<Config>>> {
        let loaded = self.source().as_ref().map(load).transpose()?;
        Ok(loaded.map(|(config, _)| config))
    }
}

/// Reads as the daemons do: what is only doubtful is printed and does not stop them.
pub(crate) fn load(source: &Source) -> anyhow::Result<(Arc<Config>, Stamp)> {
    let loaded = nodeyard_config::load(source, Mode::Daemon);
    print_diagnostics(&loaded);
    match loaded.config {
        Some(config) => Ok((Arc::new(config), loaded.stamp)),
        None => bail!("{} cannot be used", source.main.display()),
    }
}

impl From<&Global> for Context {
    fn from(global: &Global) -> Self {
        Self {
            files: global.files.clone(),
            format: global.format,
            verbose: global.verbose,
        }
    }
}

impl From<&Nodepool> for Context {
    fn from(args: &Nodepool) -> Self {
        Self {
            files: args.files.clone(),
            format: args.format,
            verbose: if args.debug { 2 } else { 0 },
        }
    }
}

impl From<&DaemonFlags> for Context {
    fn from(flags: &DaemonFlags) -> Self {
        Self {
            files: flags.files.clone(),
            format: Format::Table,
            verbose: u8::from(flags.debug),
        }
    }
}
