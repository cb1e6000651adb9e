//! Shared cached views of all records.

use super::{ImageShape, NodeShape, PoolShape, Registry, RequestShape};
use crate::error::Result;
use crate::view::View;

/// Cached views of all records, shared by all parts of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Views {
    pub nodes: View<NodeShape>,
    pub requests: View<RequestShape>,
    pub pools: View<PoolShape>,
    pub images: View<ImageShape>,
}

impl Views {
    /// Starts loading the views in the background. Must be called inside a tokio runtime.
    pub fn open(registry: &Registry) -> Result<Self> {
        Ok(Self {
            nodes: registry.nodes().view()?,
            requests: registry.requests().view()?,
            pools: registry.components().pool_view()?,
            images: registry.images().view()?,
        })
    }
}
