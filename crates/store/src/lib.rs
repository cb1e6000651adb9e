//! The store: a small tree of records with ZooKeeper's semantics.
//!
//! Zuul and Python Nodepool coordinate through ZooKeeper, so the semantics they rely on are the ones
//! every part of Nodeyard is written against: versioned writes, ephemeral and sequential records,
//! sessions, recursive watches. [`Tree`] is that contract. What is built on top of it (locks,
//! elections, typed registries, cached views) is written once and works on every backend.

pub mod election;
pub mod embedded;
pub mod ext;
pub mod lock;
pub mod path;
pub mod registry;
pub mod socket;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tree;
pub mod view;
pub mod watch;
pub mod zookeeper;

mod error;
mod limits;

pub use error::{Error, Result};
pub use path::TreePath;
pub use tree::{
    CreateMode, Created, Listing, Op, OpOutcome, Record, Session, SessionId, Stat, Tree, Version,
};
pub use watch::{Once, WatchEvent, Watcher};
