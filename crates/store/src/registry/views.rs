//! Everything at once, followed once.

use super::{ImageShape, NodeShape, PoolShape, Registry, RequestShape};
use crate::error::Result;
use crate::view::View;

/// Copies of all records that launchers and their pages look at. One set serves all parts of a process; cloning is
/// cheap.
#[derive(Debug, Clone)]
pub struct Views {
    pub nodes: View<NodeShape>,
    pub requests: View<RequestShape>,
    pub pools: View<PoolShape>,
    pub images: View<ImageShape>,
}

impl Views {
    /// Begins to follow the store; does not wait for it. Must be called inside a runtime.
    pub fn open(registry: &Registry) -> Result<Self> {
        Ok(Self {
            nodes: registry.nodes().view()?,
            requests: registry.requests().view()?,
            pools: registry.components().pool_view()?,
            images: registry.images().view()?,
        })
    }
}
