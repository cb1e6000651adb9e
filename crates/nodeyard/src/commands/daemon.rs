//! `nodepool-launcher` and `nodepool-builder`: what each needs before it starts.
//!
//! Which process does what is never guessed from a missing key: without the keys that make it part of a
//! fleet a daemon refuses to start, and `nodeyard up` is the way to run without a fleet.

use anyhow::{bail, ensure};
use nodeyard_config::Config;

use crate::cli::DaemonFlags;
use crate::context::{self, Context};
use crate::exit::Outcome;
use crate::logging;
use crate::program::{self, Program};

pub(crate) fn run(program: Program, flags: &DaemonFlags) -> anyhow::Result<Outcome> {
    if flags.version {
        return program::print_nodepool_version();
    }
    let context = Context::from(flags);
    logging::start(logging::Level::daemons(context.verbose));
    let source = context.required_source();
    let (config, _) = context::load(&source)?;
    check_needs(program, &config)?;
    bail!(
        "{} is not part of this version yet; its configuration is good. What there is runs with `nodeyard up`",
        program.name()
    )
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
