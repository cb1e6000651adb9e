#![doc = include_str!("../README.md")]

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

mod codes;
mod error;
mod limits;

pub use error::{Error, Result};
pub use path::TreePath;
pub use tree::{
    CreateMode, Created, Listing, Op, OpOutcome, Record, Session, SessionId, Stat, Tree, Version,
};
pub use watch::{Once, WatchEvent, Watcher};
