//! The commands, one file per group.

pub(crate) mod build;
pub(crate) mod builder;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod daemon;
pub(crate) mod drain;
pub(crate) mod errors;
pub(crate) mod explain;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod install_links;
pub(crate) mod launcher;
pub(crate) mod lease;
pub(crate) mod man;
pub(crate) mod node;
pub(crate) mod nodepool;
#[cfg(feature = "kubernetes")]
pub(crate) mod pod;
pub(crate) mod records;
pub(crate) mod request;
pub(crate) mod scope;
pub(crate) mod signals;
pub(crate) mod simulate;
pub(crate) mod store;
mod test_intervals;
pub(crate) mod up;
