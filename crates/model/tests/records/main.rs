//! Records against Python Nodepool and Zuul, and against arbitrary data.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod canonical;
mod golden;
mod properties;
mod python;

use nodeyard_model::{
    Component, ImageBuild, ImageUpload, Node, NodeRequest, PoolComponent, Record, RecordError,
};

/// Parses and rewrites a record of the kind in a golden file's name, and checks that it round-trips.
fn rewrite(kind: &str, data: &[u8]) -> Result<Vec<u8>, RecordError> {
    fn both_ways<T: Record + PartialEq + std::fmt::Debug>(
        data: &[u8],
    ) -> Result<Vec<u8>, RecordError> {
        let record = T::from_json(data)?;
        let written = record.to_json();
        assert_eq!(T::from_json(&written).unwrap(), record);
        Ok(written)
    }
    match kind {
        "request" => both_ways::<NodeRequest>(data),
        "node" => both_ways::<Node>(data),
        "build" => both_ways::<ImageBuild>(data),
        "upload" => both_ways::<ImageUpload>(data),
        "component" => both_ways::<Component>(data),
        "pool" => both_ways::<PoolComponent>(data),
        _ => panic!("no record is called {kind}"),
    }
}
