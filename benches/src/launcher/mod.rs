//! The launcher beside that of Python Nodepool: the same load on the same ZooKeeper, in turns.
//!
//! Both run as processes and are not told that they are measured. The load is of our making ([`zuul`]) and the same
//! for both. Every row is bounded in time: what Python does not finish by then is counted as far as it got.

mod bare;
mod configuration;
mod contestant;
mod load;
mod rows;
mod zuul;

use std::path::Path;
use std::time::Duration;

use clap::Args;

pub(crate) use self::configuration::cloud;
pub(crate) use self::contestant::{
    Arena, OPTIMISED, START_PATIENCE, Who, memory, most_memory, processor_time, program,
};
pub(crate) use self::zuul::Zuul;

use crate::report::{self, Figure, rate};
use crate::zookeeper;

/// How large the loads of the launcher's benchmark are
#[derive(Debug, Clone, Args)]
pub(crate) struct Sizes {
    /// A fifth of everything: for a look, not for the record
    #[arg(long)]
    quick: bool,
    /// Leave Python out
    #[arg(long)]
    alone: bool,
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT")]
    row: Option<String>,
}

impl Sizes {
    pub(crate) fn contestants(&self) -> &'static [Who] {
        if self.alone {
            &[Who::Ours]
        } else {
            &[Who::Python, Who::Ours]
        }
    }

    pub(crate) fn count(&self, full: usize) -> usize {
        if self.quick { full / 5 } else { full }
    }

    fn time(&self, full: u64) -> Duration {
        Duration::from_secs(if self.quick { full / 3 } else { full })
    }

    fn wants(&self, row: &str) -> bool {
        self.row.as_deref().is_none_or(|text| row.contains(text))
    }
}

/// Prints as it goes: this takes minutes.
pub(crate) async fn measure(program: Option<&Path>, sizes: &Sizes) -> anyhow::Result<()> {
    report::print_title("Launcher, ZooKeeper with TLS and fsync");
    let arena = Arena::new(program)?;
    let limit = zookeeper::pipelined_writes(&arena.server).await?;
    let title = "this ZooKeeper, pipelined writes of 1,300 bytes";
    report::print_figures(&[Figure::new(title, rate(limit))]);
    rows::all(&arena, sizes, limit).await;
    Ok(())
}
