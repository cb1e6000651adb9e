//! The store: a small tree of records with ZooKeeper's semantics.
//!
//! [`Tree`] is the contract that every backend implements: versioned writes, ephemeral and sequential records,
//! sessions, recursive watches, as Zuul and Python Nodepool require. Locks, elections, typed registries and cached
//! views are built on top of it and work with every backend.

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
