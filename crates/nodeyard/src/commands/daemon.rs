//! `nodepool-launcher` and `nodepool-builder`: what each needs before it starts.
//!
//! Which process does what is never guessed from a missing key: without the keys that make it part of a
//! fleet a daemon refuses to start, and `nodeyard up` is the way to run without a fleet.

use std::sync::Arc;

use anyhow::{bail, ensure};
use nodeyard_config::{Config, Reloader, Source, Stamp};
use nodeyard_store::Tree as _;
use nodeyard_store::zookeeper::ZooKeeper;

use crate::cli::DaemonFlags;
use crate::commands::launcher::{self, Pages};
use crate::commands::up;
use crate::context::{self, Context};
use crate::exit::Outcome;
use crate::logging;
use crate::program::{self, Program};
use crate::store_access::Target;

pub(crate) fn run(program: Program, flags: &DaemonFlags, pages: Pages) -> anyhow::Result<Outcome> {
    if flags.version {
        return program::print_nodepool_version();
    }
    let context = Context::from(flags);
    logging::start(logging::Level::daemons(context.verbose));
    let source = context.required_source();
    let (config, stamp) = context::load(&source)?;
    check_needs(program, &config)?;
    if program == Program::NodepoolLauncher {
        crate::block_on(run_launcher(source, config, stamp, pages))?;
        return Ok(Outcome::Success);
    }
    bail!(
        "{} is not part of this version yet; its configuration is good. What there is runs with `nodeyard up`",
        program.name()
    )
}

async fn run_launcher(
    source: Source,
    config: Arc<Config>,
    stamp: Stamp,
    pages: Pages,
) -> anyhow::Result<()> {
    let stop = up::stop_on_signals()?;
    let Target::ZooKeeper(options) = Target::of(Some(&config))? else {
        bail!("the launcher needs `zookeeper-servers`");
    };
    let client = ZooKeeper::connect(options);
    let (reloader, handle) = Reloader::new(source, config, stamp);
    let reloading = tokio::spawn(reloader.run());
    let result = launcher::run(Arc::clone(&client) as _, handle, pages, stop).await;
    reloading.abort();
    client.close().await;
    result
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
