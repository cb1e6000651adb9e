//! Orders for tests that go through a life step by step.

use nodeyard_model::NodeId;

use crate::order::{BootImage, CreateOrder, RequestAttributes};
use crate::tags::Owner;

/// A machine `small` in the pool `main`, from an image of the cloud.
pub fn order(owner: &Owner, node: NodeId) -> CreateOrder {
    CreateOrder {
        node,
        pool: "main".into(),
        label: "small".into(),
        image: BootImage::Cloud,
        tags: owner.node_tags(node, "main".into()),
        az: None,
        request: RequestAttributes::default(),
    }
}
