//! The index entry of one node.

use nodeyard_model::{
    Allocation, Label, NodeState, ProviderName, RequestId, Resources, TenantName, Timestamp,
};

use crate::setup::{PoolKey, ZoneName};

/// The parts of a node record that decisions need.
#[derive(Debug, PartialEq)]
pub(crate) struct NodeEntry {
    pub(crate) state: NodeState,
    pub(crate) state_time: Timestamp,
    pub(crate) provider: Option<ProviderName>,
    pub(crate) key: Option<PoolKey>,
    pub(crate) labels: Box<[Label]>,
    pub(crate) allocated_to: Option<Allocation>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) hold_expiration: Option<i64>,
    /// Launched for `min-ready`.
    pub(crate) for_min_ready: bool,
    /// Its lock has contenders.
    pub(crate) locked: bool,
    pub(super) resources: Option<Resources>,
    /// What it uses: its recorded resources, or the cost of its label.
    pub(super) charge: Resources,
    pub(super) zone: Option<ZoneName>,
    /// One of our pools is launching it.
    pub(super) launching: bool,
}

impl NodeEntry {
    pub(super) fn request(&self) -> Option<RequestId> {
        self.allocated_to.as_ref().and_then(Allocation::request)
    }

    /// Returns whether it is ready, unallocated and unlocked.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == NodeState::Ready && self.allocated_to.is_none() && !self.locked
    }

    /// Returns whether it is ready and unallocated in a known pool, locked or not.
    pub(super) fn is_spare(&self) -> bool {
        self.state == NodeState::Ready && self.allocated_to.is_none() && self.key.is_some()
    }

    /// Returns whether its room is about to be freed.
    pub(super) fn is_leaving(&self) -> bool {
        use NodeState::{Aborted, Deleted, Deleting, Failed, Used};
        matches!(self.state, Used | Failed | Aborted | Deleting | Deleted)
    }

    /// Returns the charge of its tenant. An idle node has none, even if it names its last tenant.
    pub(super) fn tenant_charge(&self) -> Option<(&TenantName, &Resources)> {
        if self.state == NodeState::Ready && self.allocated_to.is_none() {
            return None;
        }
        Some((self.tenant.as_ref()?, self.resources.as_ref()?))
    }

    /// Returns whether it is unlocked in a state that requires a lock, or marked for deletion.
    pub(super) fn is_unattended(&self) -> bool {
        use NodeState::{Aborted, Building, Deleted, Deleting, Failed, InUse, Used};
        !self.locked
            && matches!(
                self.state,
                Building | InUse | Used | Failed | Aborted | Deleting | Deleted
            )
    }
}
