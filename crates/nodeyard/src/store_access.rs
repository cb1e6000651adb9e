//! From a configuration to a handle on its store.
//!
//! With `zookeeper-servers` the store is ZooKeeper. Otherwise it is the embedded one in `state-dir`: its owner
//! is asked over the socket, and if no process owns it, the file is opened for the time of the command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use nodeyard_config::Config;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::socket;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{Session, Tree};

use crate::cli::Context;

#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Use the embedded store in this directory, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Seconds to wait for the store to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    timeout: f64,
}
