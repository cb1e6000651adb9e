//! What a caller asks for: a machine, or that one goes away.

use nodeyard_model::{
    ImageName, Label, NodeId, Opaque, PoolName, RequestId, TenantName, Timestamp,
};

use crate::ids::ExternalId;
use crate::resource::ResourceKind;
use crate::tags::Tags;

/// A machine to make. The record of its node exists already, and its id is the token of the order:
/// however often the order is placed, there is one machine.
#[derive(Debug, Clone)]
pub struct CreateOrder {
    pub node: NodeId,
    pub pool: PoolName,
    pub label: Label,
    pub image: BootImage,
    /// What the machine must carry.
    pub tags: Tags,
    /// Nothing was made for this node before: looking for it would be a wasted call.
    pub first_attempt: bool,
    pub az: Option<Box<str>>,
    /// The request it is for, as templates in the configuration see it.
    pub request: RequestAttributes,
}

impl CreateOrder {
    /// `np` and the id of the node: short enough for Windows, and it leads back to the record.
    pub fn hostname(&self) -> String {
        format!("np{}", self.node)
    }
}

/// What a machine boots from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootImage {
    /// An upload of ours.
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

/// What is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Everything that was made for a node. Without `external_id` the answer of create was lost, or create
    /// was never called: the driver looks for what carries the node's id.
    Node {
        node: NodeId,
        external_id: Option<ExternalId>,
    },
    /// One thing, as the driver listed it.
    Resource { kind: ResourceKind, id: ExternalId },
}
