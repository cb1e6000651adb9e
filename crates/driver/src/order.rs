//! Orders to create a machine, and targets of deletions.

use nodeyard_model::{
    ImageName, Label, NodeId, Opaque, PoolName, RequestId, TenantName, Timestamp,
};

use crate::ids::ExternalId;
use crate::resource::ResourceKind;
use crate::tags::Tags;

/// A machine to create. The record of its node exists already, and its id identifies the order: however often it is
/// repeated, there is one machine.
#[derive(Debug, Clone)]
pub struct CreateOrder {
    pub node: NodeId,
    pub pool: PoolName,
    pub label: Label,
    pub image: BootImage,
    /// The tags that the machine must have.
    pub tags: Tags,
    /// Nothing was created for this node before, so that looking for it would be a wasted call.
    pub first_attempt: bool,
    pub az: Option<Box<str>>,
    /// The request that it is for, for templates in the configuration.
    pub request: RequestAttributes,
}

impl CreateOrder {
    /// Returns `np` and the id of the node, which is short enough for Windows and leads back to the record.
    pub fn hostname(&self) -> String {
        format!("np{}", self.node)
    }
}

/// The image that a machine boots from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootImage {
    /// An uploaded image.
    Upload {
        image: ImageName,
        external_id: ExternalId,
    },
    /// The cloud image that the configuration of the label names; the driver finds it.
    Cloud,
}

/// The parts of a request that templates may use.
#[derive(Debug, Clone)]
pub struct RequestAttributes {
    pub id: Option<RequestId>,
    pub labels: Vec<Label>,
    pub requestor: Option<Box<str>>,
    pub requestor_data: Opaque,
    pub relative_priority: i64,
    pub event_id: Option<Box<str>>,
    pub created_time: Option<Timestamp>,
    pub tenant_name: Option<TenantName>,
}

impl Default for RequestAttributes {
    fn default() -> Self {
        Self {
            id: None,
            labels: Vec::new(),
            requestor: None,
            requestor_data: Opaque::NULL,
            relative_priority: 0,
            event_id: None,
            created_time: None,
            tenant_name: None,
        }
    }
}

/// What to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Everything that was created for a node. Without `external_id` the result of create was lost, or create was never
    /// called: the driver looks for resources with the node's tags.
    Node {
        node: NodeId,
        external_id: Option<ExternalId>,
    },
    /// One resource that the driver listed.
    Resource { kind: ResourceKind, id: ExternalId },
}
