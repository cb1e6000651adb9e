//! From a configuration to a handle on its store.
//!
//! With `zookeeper-servers` the store is ZooKeeper. Otherwise it is the embedded one in `state-dir`: its
//! owner is asked over the socket, and if no process owns it, the file is opened for the time of the command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use nodeyard_config::{Config, Handle};
use nodeyard_model::ErrorCode;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::Registry;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper, ZooKeeperTlsFiles};
use nodeyard_store::{Error, Tree, TreePath, socket};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::context::Context;
use crate::error_codes::WithCode as _;

/// How often to look whether another process is done with the file.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Use the embedded store in this directory, whatever the configuration says
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Seconds to wait for the store to answer
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
    /// The embedded store in a directory, or the configured store.
    pub(crate) fn in_directory(state_dir: Option<PathBuf>) -> Self {
        Self {
            state_dir,
            ..Self::default()
        }
    }
}

/// Which store a configuration means.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    ZooKeeper(Options),
    Embedded(PathBuf),
}

impl Target {
    pub(crate) fn of(config: Option<&Config>) -> anyhow::Result<Self> {
        if let Some(zookeeper) = config.and_then(|config| config.zookeeper.as_ref()) {
            return Ok(Target::ZooKeeper(options(zookeeper)?));
        }
        Ok(Target::Embedded(state_dir(config)?))
    }
}

/// A client for a program that goes on without a server, but not with certificates that nobody can use.
pub(crate) fn connect(options: Options) -> anyhow::Result<Arc<ZooKeeper>> {
    if let Some(tls) = &options.tls {
        tls.load().context("`zookeeper-tls` cannot be used")?;
    }
    Ok(ZooKeeper::connect(options))
}

/// Tells the client of a changed `zookeeper-servers`. The session stays, so all servers must belong to one ensemble, and
/// nothing else about them can change.
pub(crate) async fn follow_servers(client: Arc<ZooKeeper>, used: Options, mut config: Handle) {
    let mut told = Vec::new();
    while let Some(config) = config.changed().await {
        match Target::of(Some(&config)) {
            Ok(Target::ZooKeeper(options)) => {
                let changed = fixed_changes(&used, &options);
                if !changed.is_empty() && changed != told {
                    warn!(
                        "changed, but used only after a restart: {}",
                        changed.join(", ")
                    );
                }
                told = changed;
                client.set_hosts(options.hosts);
            }
            Ok(Target::Embedded(_)) => {
                warn!("`zookeeper-servers` is gone; another store is used after a restart");
            }
            Err(error) => warn!("the ZooKeeper servers stay as they were: {error:#}"),
        }
    }
}

/// The keys whose values a connection keeps.
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

/// Where this installation keeps what belongs to this host.
pub(crate) fn state_dir(config: Option<&Config>) -> anyhow::Result<PathBuf> {
    match config.and_then(|config| config.state_dir.as_deref()) {
        Some(directory) => Ok(PathBuf::from(directory)),
        None => default_state_dir(),
    }
}

fn options(zookeeper: &nodeyard_config::ZooKeeper) -> anyhow::Result<Options> {
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

/// `/var/lib/nodeyard` for root, otherwise below the user's own state directory.
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
        .context("neither XDG_STATE_HOME nor HOME is set; name a directory with --state-dir or state-dir")
        .code(ErrorCode::StateDirectory)
}

/// A handle for one command.
pub(crate) struct Access {
    pub(crate) tree: Arc<dyn Tree>,
    /// Kept while this process owns the file.
    owned: Option<Arc<Embedded>>,
}

impl Access {
    /// Ends the session at once: what is left open would keep its ephemeral records until it times out.
    pub(crate) async fn close(self) {
        self.tree.close().await;
        if let Some(engine) = self.owned {
            engine.close().await;
        }
    }
}

pub(crate) async fn open(args: &TargetArgs, context: &Context) -> anyhow::Result<Access> {
    let target = match &args.state_dir {
        Some(directory) => Target::Embedded(directory.clone()),
        None => Target::of(context.load()?.as_deref())?,
    };
    let patience = Duration::from_secs(args.timeout);
    match target {
        Target::ZooKeeper(options) => {
            let servers: Vec<String> = options.hosts.iter().map(Host::to_string).collect();
            let client = connect(options)?;
            let connected = client.connected(patience).await.with_context(|| {
                format!(
                    "no ZooKeeper server answered within {} s: {} ({})",
                    args.timeout,
                    servers.join(", "),
                    context.config_note()
                )
            });
            connected.code(ErrorCode::StoreUnreachable)?;
            Ok(Access {
                tree: client,
                owned: None,
            })
        }
        Target::Embedded(directory) => embedded(&directory, patience, &context.config_note()).await,
    }
}

/// Does something with the records of the store that the command line or the configuration names.
pub(crate) async fn with_registry<T>(
    args: &TargetArgs,
    context: &Context,
    work: impl AsyncFnOnce(&Registry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let access = open(args, context).await?;
    let registry = Registry::new(Arc::clone(&access.tree));
    let result = work(&registry).await;
    // A command that was told no may still hold a place in a queue.
    registry.locks().settled().await;
    access.close().await;
    result
}

/// The owner if there is one, otherwise the file. A process that is about to become the owner, or another
/// command that has the file open, is waited for.
async fn embedded(directory: &Path, patience: Duration, note: &str) -> anyhow::Result<Access> {
    let path = directory.join(socket::FILE_NAME);
    let deadline = Instant::now() + patience;
    loop {
        if UnixStream::connect(&path).await.is_ok() {
            let options = socket::ConnectOptions {
                patience,
                ..socket::ConnectOptions::default()
            };
            let tree = socket::connect(&path, options).await?;
            return Ok(Access { tree, owned: None });
        }
        if !Embedded::exists(directory) {
            let error = anyhow!(
                "there is no store in {}; start one with `nodeyard up`, name another with --state-dir, or give a \
                 configuration with `zookeeper-servers` ({note})",
                directory.display()
            );
            return Err(error).code(ErrorCode::NoStore);
        }
        match open_file(directory).await {
            Err(Error::InUse { .. }) if Instant::now() < deadline => sleep(RETRY).await,
            engine => {
                let engine = engine?;
                return Ok(Access {
                    tree: engine.session(),
                    owned: Some(engine),
                });
            }
        }
    }
}

/// The file for the process that is to be its owner. A command that has it open for a moment is waited for;
/// another owner, who serves the socket, is not, and is named.
pub(crate) async fn own(directory: &Path, patience: Duration) -> anyhow::Result<Arc<Embedded>> {
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

/// Who it is that owns a store, from the other end of its socket.
fn described(directory: &Path, owner: &UnixStream) -> String {
    let directory = directory.display();
    let Some(pid) = owner.peer_cred().ok().and_then(|peer| peer.pid()) else {
        return format!("another process has the store in {directory}; stop it first");
    };
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!(
        "process {pid} ({}) has the store in {directory}; stop it first, or use another `state-dir`",
        line.trim()
    )
}

/// Opening reads the whole file, which is not for a thread that others wait for.
async fn open_file(directory: &Path) -> Result<Arc<Embedded>, Error> {
    let directory = directory.to_owned();
    let open = tokio::task::spawn_blocking(move || Embedded::open(&directory));
    open.await.unwrap_or(Err(Error::Closed))
}
