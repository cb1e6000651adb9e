//! Opens the store of a configuration.
//!
//! With `zookeeper-servers` it is ZooKeeper, otherwise the embedded store in `state-dir`. Commands access the latter
//! through its owner's socket, or open the file themselves if no process owns it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use nodeyard_config::{Config, ConfigHandle};
use nodeyard_model::ErrorCode;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::Registry;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper, ZooKeeperTlsFiles};
use nodeyard_store::{Error, Tree, TreePath, socket};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::context::CommandContext;
use crate::error_codes::WithCode as _;

/// The interval for checking whether another process has closed the file.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Use the embedded store in this directory, whatever the configuration says
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Timeout for the store, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
}

impl Default for TargetArgs {
    fn default() -> Self {
        Self {
            state_dir: None,
            timeout: 10,
        }
    }
}

impl TargetArgs {
    /// Selects the embedded store in a directory, or the configured store.
    pub(crate) fn in_directory(state_dir: Option<PathBuf>) -> Self {
        Self {
            state_dir,
            ..Self::default()
        }
    }
}

/// The store that a configuration selects.
#[derive(Debug, Clone)]
pub(crate) enum StoreTarget {
    ZooKeeper(Options),
    Embedded(PathBuf),
}

impl StoreTarget {
    pub(crate) fn of(config: Option<&Config>) -> anyhow::Result<Self> {
        if let Some(zookeeper) = config.and_then(|config| config.zookeeper.as_ref()) {
            return Ok(StoreTarget::ZooKeeper(options(zookeeper)?));
        }
        Ok(StoreTarget::Embedded(state_dir(config)?))
    }
}

/// Connects to ZooKeeper in the background. Fails only if the TLS files are invalid.
pub(crate) fn connect(options: Options) -> anyhow::Result<Arc<ZooKeeper>> {
    if let Some(tls) = &options.tls {
        tls.load()
            .context("invalid `zookeeper-tls`")
            .code(ErrorCode::StoreTls)?;
    }
    Ok(ZooKeeper::connect(options))
}

/// Applies changes of `zookeeper-servers` to the client. The session is kept, so all servers must belong to one
/// ensemble; other changes need a restart.
pub(crate) async fn follow_servers(
    client: Arc<ZooKeeper>,
    used: Options,
    mut config: ConfigHandle,
) {
    let mut reported = Vec::new();
    while let Some(config) = config.changed().await {
        match StoreTarget::of(Some(&config)) {
            Ok(StoreTarget::ZooKeeper(options)) => {
                let changed = fixed_changes(&used, &options);
                if !changed.is_empty() && changed != reported {
                    warn!("restart to apply the changes of {}", changed.join(", "));
                }
                reported = changed;
                client.set_hosts(options.hosts);
            }
            Ok(StoreTarget::Embedded(_)) => {
                warn!("`zookeeper-servers` was removed; restart to switch the store");
            }
            Err(error) => warn!("failed to apply the changed `zookeeper-servers`: {error:#}"),
        }
    }
}

/// Returns the changed settings that a connection cannot change.
fn fixed_changes(used: &Options, new: &Options) -> Vec<&'static str> {
    let keys = [
        ("`chroot` of `zookeeper-servers`", used.chroot != new.chroot),
        ("`zookeeper-tls`", used.tls != new.tls),
        (
            "`zookeeper-timeout`",
            used.session_timeout != new.session_timeout,
        ),
    ];
    let changed = keys.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(key, _)| key).collect()
}

/// Returns the directory for the state of this host.
pub(crate) fn state_dir(config: Option<&Config>) -> anyhow::Result<PathBuf> {
    match config.and_then(|config| config.state_dir.as_deref()) {
        Some(directory) => Ok(PathBuf::from(directory)),
        None => default_state_dir(),
    }
}

fn options(zookeeper: &nodeyard_config::ZooKeeperConfig) -> anyhow::Result<Options> {
    let hosts = zookeeper
        .addresses()
        .iter()
        .map(|address| address.parse::<Host>())
        .collect::<Result<_, _>>()?;
    let mut options = Options::new(hosts);
    options.session_timeout = zookeeper.timeout.0;
    if !zookeeper.chroot.is_empty() {
        options.chroot = TreePath::new(zookeeper.chroot.as_str())?;
    }
    options.tls = zookeeper.tls.as_ref().map(|tls| ZooKeeperTlsFiles {
        ca: PathBuf::from(&tls.ca),
        cert: PathBuf::from(&tls.cert),
        key: PathBuf::from(&tls.key),
        verify_hostname: tls.verify_hostname,
    });
    Ok(options)
}

/// Returns `/var/lib/nodeyard` for root, otherwise a directory below the user's state directory.
fn default_state_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/nodeyard"));
    }
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("nodeyard"))
        .context("no state directory: neither XDG_STATE_HOME nor HOME is set; set --state-dir or `state-dir`")
        .code(ErrorCode::StateDirectory)
}

/// The store, opened for one command.
pub(crate) struct StoreAccess {
    pub(crate) tree: Arc<dyn Tree>,
    /// The engine, if this process has opened the file.
    owned: Option<Arc<Embedded>>,
}

impl StoreAccess {
    /// Ends the session, because its ephemeral records would otherwise stay until it times out.
    pub(crate) async fn close(self) {
        self.tree.close().await;
        if let Some(engine) = self.owned {
            engine.close().await;
        }
    }
}

pub(crate) async fn open(
    args: &TargetArgs,
    context: &CommandContext,
) -> anyhow::Result<StoreAccess> {
    let target = match &args.state_dir {
        Some(directory) => StoreTarget::Embedded(directory.clone()),
        None => StoreTarget::of(context.load()?.as_deref())?,
    };
    let patience = Duration::from_secs(args.timeout);
    match target {
        StoreTarget::ZooKeeper(options) => {
            let servers: Vec<String> = options.hosts.iter().map(Host::to_string).collect();
            let client = connect(options)?;
            let connected = client.connected(patience).await.with_context(|| {
                format!(
                    "no ZooKeeper server responded within {} s: {} ({})",
                    args.timeout,
                    servers.join(", "),
                    context.config_note()
                )
            });
            connected.code(ErrorCode::StoreUnreachable)?;
            Ok(StoreAccess {
                tree: client,
                owned: None,
            })
        }
        StoreTarget::Embedded(directory) => {
            embedded(&directory, patience, &context.config_note()).await
        }
    }
}

/// Runs `work` with the registry of the store that the command line or the configuration selects.
pub(crate) async fn with_registry<T>(
    args: &TargetArgs,
    context: &CommandContext,
    work: impl AsyncFnOnce(&Registry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let access = open(args, context).await?;
    let registry = Registry::new(Arc::clone(&access.tree));
    let result = work(&registry).await;
    // A failed command may still be queued for a lock.
    registry.locks().settled().await;
    access.close().await;
    result
}

/// Opens the store through its owner, or else the file. Waits for a process that is about to become the owner and for
/// commands that have the file open.
async fn embedded(directory: &Path, patience: Duration, note: &str) -> anyhow::Result<StoreAccess> {
    let path = directory.join(socket::FILE_NAME);
    let deadline = Instant::now() + patience;
    loop {
        if UnixStream::connect(&path).await.is_ok() {
            let options = socket::ConnectOptions {
                patience,
                ..socket::ConnectOptions::default()
            };
            let tree = socket::connect(&path, options).await?;
            return Ok(StoreAccess { tree, owned: None });
        }
        if !Embedded::exists(directory) {
            let error = anyhow!(
                "no store in {}; start one with `nodeyard up`, select another with --state-dir, or give a \
                 configuration with `zookeeper-servers` ({note})",
                directory.display()
            );
            return Err(error).code(ErrorCode::NoStore);
        }
        match open_file(directory).await {
            Err(Error::InUse { .. }) if Instant::now() < deadline => sleep(RETRY).await,
            engine => {
                let engine = engine?;
                return Ok(StoreAccess {
                    tree: engine.session(),
                    owned: Some(engine),
                });
            }
        }
    }
}

/// Opens the file for the process that is to own it. Waits for a command that has it open; fails with the name of
/// another owner.
pub(crate) async fn open_as_owner(
    directory: &Path,
    patience: Duration,
) -> anyhow::Result<Arc<Embedded>> {
    let path = directory.join(socket::FILE_NAME);
    let deadline = Instant::now() + patience;
    loop {
        match open_file(directory).await {
            Err(error @ Error::InUse { .. }) => match UnixStream::connect(&path).await {
                Err(_) if Instant::now() < deadline => sleep(RETRY).await,
                Err(_) => return Err(error.into()),
                Ok(owner) => return Err(error).with_context(|| described(directory, &owner)),
            },
            engine => return Ok(engine?),
        }
    }
}

/// Describes the process that owns a store.
fn described(directory: &Path, owner: &UnixStream) -> String {
    let directory = directory.display();
    let Some(pid) = owner.peer_cred().ok().and_then(|peer| peer.pid()) else {
        return format!("another process owns the store in {directory}; stop it first");
    };
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!(
        "process {pid} ({}) owns the store in {directory}; stop it first, or use another `state-dir`",
        line.trim()
    )
}

/// Opens the store on a blocking thread, because opening reads the whole file.
async fn open_file(directory: &Path) -> Result<Arc<Embedded>, Error> {
    let directory = directory.to_owned();
    let open = tokio::task::spawn_blocking(move || Embedded::open(&directory));
    open.await.unwrap_or(Err(Error::Closed))
}
