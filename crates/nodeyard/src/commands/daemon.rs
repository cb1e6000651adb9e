//! `nodepool-launcher` and `nodepool-builder`: what each needs before it starts, and where it runs.
//!
//! Which process does what is never guessed from a missing key: without the keys that make it part of a
//! fleet a daemon refuses to start, and `nodeyard up` is the way to run without a fleet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use nodeyard_config::{Config, Reloader, Source, Stamp};
use nodeyard_model::ErrorCode;
use nodeyard_store::Tree;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::background::{self, Detached};
use crate::cli::DaemonFlags;
use crate::commands::builder::{self, Hands};
use crate::commands::launcher::{self, Pages, Served, Tools};
use crate::commands::signals;
use crate::context::{self, Context};
use crate::error_codes::WithCode as _;
use crate::exit::Outcome;
use crate::logging::{self, Destination};
use crate::program::{self, Program};
use crate::store_access::{self, Target};

/// What a daemon does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Launch(Pages),
    Build(Hands),
}

pub(crate) fn run(program: Program, mut flags: DaemonFlags, work: Work) -> anyhow::Result<Outcome> {
    if flags.version {
        return program::print_nodepool_version();
    }
    for path in flags.paths() {
        *path = absolute(path)?;
    }
    let foreground = flags.foreground || flags.debug;
    let pid_file = flags
        .pid_file
        .clone()
        .unwrap_or_else(|| Path::new("/var/run/nodepool").join(format!("{}.pid", name(program))));
    if !foreground && !background::is_child() {
        return background::launch(&pid_file);
    }
    let context = Context::from(&flags);
    let source = context.required_source()?;
    let (config, stamp) = context::load(&source)?;
    check_needs(program, &config).code(ErrorCode::NoFleet)?;
    let detached = match foreground {
        true => None,
        false => Some(Detached::begin(&pid_file)?),
    };
    let log = Path::new("/var/log/nodepool").join(format!("{}.log", name(program)));
    let destination = match &flags.log_config {
        Some(path) => Destination::Configured(path),
        None if foreground => Destination::Stdout,
        None => Destination::File(&log),
    };
    logging::start_daemon(logging::Level::daemons(context.verbose), destination)?;
    if flags.repl {
        warn!("there is no Python console to open; --repl has no effect");
    }
    crate::block_on(serve(source, config, stamp, work, detached))?;
    Ok(Outcome::Success)
}

/// The launcher's files are called by the name of the whole, as Nodepool's are.
fn name(program: Program) -> &'static str {
    match program {
        Program::NodepoolLauncher => "nodepool",
        other => other.name(),
    }
}

/// Independent of the directory we are in; `~` is the user's home.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let home = std::env::home_dir();
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    };
    std::path::absolute(&path).with_context(|| format!("{} is not a path", path.display()))
}

async fn serve(
    source: Source,
    config: Arc<Config>,
    stamp: Stamp,
    work: Work,
    detached: Option<Detached>,
) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let (client, options) = match Target::of(Some(&config))? {
        Target::ZooKeeper(options) => {
            (Some(store_access::connect(options.clone())?), Some(options))
        }
        Target::Embedded(_) => (None, None),
    };
    let tree = client.clone().map(|client| client as Arc<dyn Tree>);
    let (reloader, handle) = Reloader::new(source, config, stamp);
    let reloading = tokio::spawn(reloader.run());
    let following = client.clone().zip(options).map(|(client, options)| {
        let following = store_access::follow_servers(client, options, handle.clone());
        tokio::spawn(following)
    });
    let begun = CancellationToken::new();
    let tools = Tools::new(launcher::follow(handle.clone()))?;
    let working = async {
        match (work, tree) {
            (Work::Launch(pages), Some(tree)) => {
                let served = Served {
                    pages,
                    local_token: None,
                };
                let run = launcher::run(tree, handle, tools, served, begun.clone(), stop);
                Box::pin(run).await
            }
            (Work::Launch(_), None) => bail!("the launcher needs `zookeeper-servers`"),
            (Work::Build(hands), tree) => {
                builder::run(tree, handle, tools.drivers, hands, begun.clone(), stop).await
            }
        }
    };
    let telling = async {
        match &detached {
            Some(detached) => {
                begun.cancelled().await;
                detached.ready()
            }
            None => Ok(()),
        }
    };
    let working = async {
        let result = working.await;
        // Whoever waits for the beginning need not wait for ever.
        begun.cancel();
        result
    };
    let (result, told) = tokio::join!(working, telling);
    reloading.abort();
    if let Some(task) = following {
        task.abort();
    }
    if let Some(client) = client {
        client.close().await;
    }
    result.and(told)
}

fn check_needs(program: Program, config: &Config) -> anyhow::Result<()> {
    let fleet = config.zookeeper.is_some();
    let worker = program == Program::NodepoolBuilder && !config.gearman_servers.is_empty();
    let keys = match program {
        Program::NodepoolBuilder => "`zookeeper-servers` nor `gearman-servers`",
        _ => "`zookeeper-servers`",
    };
    ensure!(
        fleet || worker,
        "the configuration has no {keys}, so {} cannot join a fleet; add the key, or run everything on this \
         machine with `nodeyard up`",
        program.name()
    );
    Ok(())
}
