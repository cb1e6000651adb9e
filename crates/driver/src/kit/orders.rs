//! Orders for tests that call a driver one operation at a time.

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
        first_attempt: true,
        az: None,
        request: RequestAttributes::default(),
    }
}
