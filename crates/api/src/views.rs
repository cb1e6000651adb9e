//! The cached views that pages and metrics read.

pub(crate) mod image_markers;

use std::sync::Arc;

use nodeyard_model::layout;
use nodeyard_store::registry::{self, ImageShape, NodeShape, PoolShape, Registry, RequestShape};
use nodeyard_store::view::View;
use nodeyard_store::{Result, Session, Tree, TreePath};
use tokio::sync::watch;

use image_markers::ImageMarkerShape;

/// The launcher's cached views, and one of image markers. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct StatusViews {
    pub nodes: View<NodeShape>,
    pub requests: View<RequestShape>,
    pub pools: View<PoolShape>,
    pub images: View<ImageShape>,
    /// Pauses and build requests of images.
    pub image_markers: View<ImageMarkerShape>,
    pub session: watch::Receiver<Session>,
    pub(crate) tree: Arc<dyn Tree>,
}

impl StatusViews {
    /// Opens the views in addition to `records`; does not wait for their content. Must be called inside a runtime.
    pub fn open(registry: &Registry, records: registry::Views) -> Result<Self> {
        let tree = registry.tree();
        let images = TreePath::new(layout::IMAGES)?;
        Ok(Self {
            nodes: records.nodes,
            requests: records.requests,
            pools: records.pools,
            images: records.images,
            image_markers: View::open(Arc::clone(tree), images, ImageMarkerShape),
            session: tree.session(),
            tree: Arc::clone(tree),
        })
    }

    /// Returns when the views contain everything that was written before the call.
    pub async fn synced(&self) -> Result<()> {
        tokio::try_join!(
            self.nodes.synced(),
            self.requests.synced(),
            self.pools.synced(),
            self.images.synced(),
            self.image_markers.synced(),
        )?;
        Ok(())
    }
}
