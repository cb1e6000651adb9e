//! Nodes of other providers, for a driver that makes its nodes out of those.
//!
//! Such a driver is a requestor as well: it asks for a node like anybody else, holds what it was given, and gives
//! it back. Drivers never see the store, so this is all they see of it: a [`Survey`] of what there is, and the few
//! things that can be done about it. The launcher implements [`Backing`] over its store; tests do over a table.
//!
//! Nothing of this is remembered by the driver. Which node stands where is in the [`Note`] that the holder keeps on
//! the node it holds, and a note is replaced only if it is still the one that was read. So several launchers may
//! serve the same provider, and a new process knows what the one before it knew.

mod note;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_model::{Label, Node, NodeId, RequestId, RequestState};
use tokio::sync::watch;

pub use note::{Note, Placement};

use crate::error::Error;

/// What one provider has asked for, holds, and has made out of it.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Another number after every change.
    pub edition: u64,
    /// Requests for nodes, by whichever launcher of this provider.
    pub asked: BTreeMap<RequestId, Asked>,
    /// Nodes of other providers whose lock is ours for good.
    pub held: BTreeMap<NodeId, HeldNode>,
    /// Nodes of the provider itself.
    pub own: BTreeMap<NodeId, OwnNode>,
}

impl Survey {
    /// Which slot a node has, by the notes.
    pub fn claim_of(&self, node: NodeId) -> Option<Placement> {
        self.held.iter().find_map(|(id, held)| {
            let slot = held.note.as_ref()?.slot_of(node)?;
            Some(Placement {
                backing_node: *id,
                slot,
            })
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub label: Label,
    pub state: RequestState,
    /// It was made by this process, which alone takes what it is given: a request ends with its session, and
    /// then its node becomes free.
    pub mine: bool,
}

impl Asked {
    /// There may come a node of it.
    pub fn is_open(&self) -> bool {
        self.state != RequestState::Failed
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct HeldNode {
    pub node: Arc<Node>,
    pub version: i32,
    /// None while it is being taken, and if whoever was taking it has died.
    pub note: Option<Note>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNode {
    pub label: Option<Label>,
    /// It is being launched.
    pub launching: bool,
    /// Where its record says that it is.
    pub placement: Option<Placement>,
}

/// The store, as far as such a driver may use it.
///
/// What a method has done is in the survey when it returns. All errors may pass: what was begun is begun again after
/// a look at the survey.
#[async_trait]
pub trait Backing: fmt::Debug + Send + Sync {
    /// What there is, and a wake-up for whenever that changes. Waits until everything has been read once.
    async fn survey(&self) -> Result<watch::Receiver<Survey>, Error>;

    /// Returns when the survey shows all that anybody had written before the call.
    async fn refresh(&self) -> Result<(), Error>;

    /// Asks for a node with this label.
    async fn ask(&self, label: &Label) -> Result<(), Error>;

    /// Takes a request back. A node that it was given becomes free.
    async fn withdraw(&self, request: RequestId) -> Result<(), Error>;

    /// Holds the node that a request was given, and ends the request. If there is no such node, only the latter.
    async fn take(&self, request: RequestId, note: &Note) -> Result<(), Error>;

    /// Replaces the note on a node that we hold; false if the node is not the one that was seen.
    async fn write(&self, node: NodeId, version: i32, note: &Note) -> Result<bool, Error>;

    /// Ends the use of a node that we hold: its provider may delete it. If it was only being taken, it becomes free.
    /// Nothing happens if the node is not the one that was seen.
    async fn give_back(&self, node: NodeId, version: i32) -> Result<(), Error>;
}
