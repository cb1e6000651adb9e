//! One node.

use nodeyard_model::{
    Allocation, Label, NodeState, ProviderName, RequestId, Resources, TenantName, Timestamp,
};

use crate::setup::{PoolKey, Zone};

/// What the plan keeps of a node's record.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) state: NodeState,
    pub(crate) state_time: Timestamp,
    pub(crate) provider: Option<ProviderName>,
    pub(crate) key: Option<PoolKey>,
    pub(crate) labels: Box<[Label]>,
    pub(crate) allocated_to: Option<Allocation>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) hold_expiration: Option<i64>,
    /// Launched to be ready before anybody asks.
    pub(crate) for_min_ready: bool,
    /// Somebody stands in line for its lock.
    pub(crate) locked: bool,
    pub(super) resources: Option<Resources>,
    /// What it uses: its own word, else what its label costs.
    pub(super) charge: Resources,
    pub(super) zone: Option<Zone>,
    /// One of our pools is launching it.
    pub(super) launching: bool,
}

impl Entry {
    pub(super) fn request(&self) -> Option<RequestId> {
        self.allocated_to.as_ref().and_then(Allocation::request)
    }

    /// Ready and nobody's, as far as the record says.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == NodeState::Ready && self.allocated_to.is_none() && !self.locked
    }

    /// Ready and nobody's by its record alone, whoever has the lock at the moment.
    pub(super) fn is_spare(&self) -> bool {
        self.state == NodeState::Ready && self.allocated_to.is_none() && self.key.is_some()
    }

    /// Its room comes back without anybody's doing.
    pub(super) fn is_leaving(&self) -> bool {
        use NodeState::{Aborted, Deleted, Deleting, Failed, Used};
        matches!(self.state, Used | Failed | Aborted | Deleting | Deleted)
    }

    /// What its tenant is charged. An idle node is nobody's, even if it remembers its last tenant.
    pub(super) fn tenant_charge(&self) -> Option<(&TenantName, &Resources)> {
        if self.state == NodeState::Ready && self.allocated_to.is_none() {
            return None;
        }
        Some((self.tenant.as_ref()?, self.resources.as_ref()?))
    }

    /// Unlocked in a state that only somebody with the lock leaves, or that says the node is to go.
    pub(super) fn is_loose(&self) -> bool {
        use NodeState::{Aborted, Building, Deleted, Deleting, Failed, InUse, Used};
        !self.locked
            && matches!(
                self.state,
                Building | InUse | Used | Failed | Aborted | Deleting | Deleted
            )
    }
}
