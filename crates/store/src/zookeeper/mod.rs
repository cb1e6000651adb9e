//! The store on a ZooKeeper ensemble.

pub mod wire;
