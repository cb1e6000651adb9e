//! Nodes of other providers, for a driver whose machines are slots on such nodes.
//!
//! Such a driver is a requestor as well: it requests backing nodes, keeps them locked, and releases them. Drivers never
//! see the store, so they use [`Backing`], which the launcher implements over its store, and tests over a table.
//!
//! The driver keeps no state of its own. Which node has which slot is in the [`SlotTable`] on the backing node, which is
//! replaced only if it is still the one that was read. So several launchers may serve one provider, and a new process
//! continues where the last one ended.

mod slots;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_model::{Label, Node, NodeId, RequestId, RequestState, Timestamp};
use tokio::sync::watch;

pub use slots::{Placement, SlotTable};

use crate::error::Error;

/// The records that concern one provider.
#[derive(Debug, Clone, Default)]
pub struct BackingSnapshot {
    /// Incremented by each change; 0 until the records were read once.
    pub revision: u64,
    /// Requests for backing nodes, by any launcher of this provider.
    pub requests: BTreeMap<RequestId, BackingRequest>,
    /// Nodes of other providers that this one keeps locked.
    pub backing_nodes: BTreeMap<NodeId, BackingNode>,
    /// Nodes of the provider itself.
    pub slot_nodes: BTreeMap<NodeId, SlotNode>,
}

impl BackingSnapshot {
    /// Returns the slot of a node, by the slot tables.
    pub fn placement_of(&self, node: NodeId) -> Option<Placement> {
        self.backing_nodes.iter().find_map(|(id, backing)| {
            let slot = backing.slots.as_ref()?.slot_of(node)?;
            Some(Placement {
                backing_node: *id,
                slot,
            })
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct BackingRequest {
    pub label: Label,
    pub state: RequestState,
    /// Whether this process made it. Only that one accepts the node: a request ends with its session, and then its node
    /// becomes free.
    pub of_this_process: bool,
}

impl BackingRequest {
    /// Whether it has a node or may get one.
    pub fn is_open(&self) -> bool {
        self.state != RequestState::Failed
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct BackingNode {
    pub node: Arc<Node>,
    pub version: i32,
    /// None while a launcher accepts it, and if that launcher died meanwhile.
    pub slots: Option<SlotTable>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotNode {
    pub label: Option<Label>,
    /// The request that it is for.
    pub request: Option<RequestId>,
    pub created: Option<Timestamp>,
    pub launching: bool,
    /// The slot that its record names.
    pub placement: Option<Placement>,
}

/// The operations on the store that such a driver may use.
///
/// When a method returns, the snapshot shows its effect. After an error it tells whether there was one.
#[async_trait]
pub trait Backing: fmt::Debug + Send + Sync {
    /// Returns a snapshot that follows the store. Waits until everything was read once.
    async fn snapshot(&self) -> Result<watch::Receiver<BackingSnapshot>, Error>;

    /// Returns when the snapshot shows everything that was written before the call, by any process.
    async fn refresh(&self) -> Result<(), Error>;

    /// Requests a node with this label.
    async fn request_node(&self, label: &Label) -> Result<(), Error>;

    /// Deletes a request. A node that it was given becomes free.
    async fn withdraw_request(&self, request: RequestId) -> Result<(), Error>;

    /// Locks the node that a request was given, and deletes the request. Without such a node it only deletes the request.
    async fn accept_node(&self, request: RequestId, slots: &SlotTable) -> Result<(), Error>;

    /// Replaces the slot table of a backing node. Returns false if the node has another version.
    async fn write_slots(
        &self,
        node: NodeId,
        version: i32,
        slots: &SlotTable,
    ) -> Result<bool, Error>;

    /// Ends the use of a backing node, so that its provider may delete it. One that was not accepted yet becomes free.
    /// Does nothing if the node has another version.
    async fn release_node(&self, node: NodeId, version: i32) -> Result<(), Error>;
}
