//! `nodeyard up`: everything in one process, with one signal to stop it.
//!
//! What there is so far: the store, open to other processes of the same user, and the configuration, read
//! again whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use nodeyard_config::Reload;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{Tree, socket};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use crate::context::{self, Context};
use crate::store_access::{SOCKET, Target};

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Directory of the embedded store, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}
