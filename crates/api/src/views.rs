//! Copies of everything that is shown and counted.

pub(crate) mod marks;

use std::sync::Arc;

use nodeyard_model::layout;
use nodeyard_store::registry::{self, ImageShape, NodeShape, PoolShape, Registry, RequestShape};
use nodeyard_store::view::View;
use nodeyard_store::{Result, Session, Tree, TreePath};
use tokio::sync::watch;

use marks::MarkShape;

/// The views that a launcher has anyway, and one more. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Views {
    pub nodes: View<NodeShape>,
    pub requests: View<RequestShape>,
    pub pools: View<PoolShape>,
    pub images: View<ImageShape>,
    /// What is asked of images.
    pub marks: View<MarkShape>,
    pub session: watch::Receiver<Session>,
    pub(crate) tree: Arc<dyn Tree>,
}

impl Views {
    /// Shows what `records` follow; does not wait for it. Must be called inside a runtime.
    pub fn open(registry: &Registry, records: registry::Views) -> Result<Self> {
        let tree = registry.tree();
        let images = TreePath::new(layout::IMAGES)?;
        Ok(Self {
            nodes: records.nodes,
            requests: records.requests,
            pools: records.pools,
            images: records.images,
            marks: View::open(Arc::clone(tree), images, MarkShape),
            session: tree.session(),
            tree: Arc::clone(tree),
        })
    }

    /// Returns when everything that had been written before the call is in the views.
    pub async fn synced(&self) -> Result<()> {
        tokio::try_join!(
            self.nodes.synced(),
            self.requests.synced(),
            self.pools.synced(),
            self.images.synced(),
            self.marks.synced(),
        )?;
        Ok(())
    }
}
