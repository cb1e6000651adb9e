//! Finds the leases and scopes that a changed record concerns.

use std::collections::HashMap;

use nodeyard_model::{NodeId, RequestId};

use crate::ids::{LeaseId, ScopeId};
use crate::lease::Lease;

/// What the keeper reconciles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKey {
    Lease(LeaseId),
    Scope(ScopeId),
}

/// The records that each lease refers to, and the reverse.
#[derive(Debug, Default)]
pub(super) struct Index {
    leases: HashMap<LeaseId, References>,
    by_request: HashMap<RequestId, LeaseId>,
    by_node: HashMap<NodeId, LeaseId>,
}

#[derive(Debug)]
struct References {
    request: Option<RequestId>,
    nodes: Vec<NodeId>,
    scope: Option<ScopeId>,
}

impl Index {
    pub(super) fn find_by_request(&self, request: RequestId) -> Option<LeaseId> {
        self.by_request.get(&request).copied()
    }

    pub(super) fn find_by_node(&self, node: NodeId) -> Option<LeaseId> {
        self.by_node.get(&node).copied()
    }

    pub(super) fn of_scope(&self, scope: ScopeId) -> impl Iterator<Item = LeaseId> {
        let leases = self.leases.iter();
        let owned = leases.filter(move |(_, references)| references.scope == Some(scope));
        owned.map(|(id, _)| *id)
    }

    /// Updates the references of a lease that was created, changed or deleted; returns the keys that this concerns.
    pub(super) fn update(&mut self, id: LeaseId, lease: Option<&Lease>) -> Vec<LeaseKey> {
        let mut keys = Vec::new();
        keys.extend(self.remove(id).map(LeaseKey::Scope));
        if let Some(lease) = lease {
            let nodes: Vec<NodeId> = lease.nodes.iter().map(|leased| leased.node).collect();
            self.by_request
                .extend(lease.request.map(|request| (request, id)));
            self.by_node.extend(nodes.iter().map(|node| (*node, id)));
            let references = References {
                request: lease.request,
                nodes,
                scope: lease.scope,
            };
            self.leases.insert(id, references);
            keys.push(LeaseKey::Lease(id));
            // A scope is deleted after its leases have ended.
            let ends = !lease.phase.is_alive();
            keys.extend(lease.scope.filter(|_| ends).map(LeaseKey::Scope));
        }
        keys
    }

    /// Removes the references of a lease; returns its scope.
    fn remove(&mut self, id: LeaseId) -> Option<ScopeId> {
        let references = self.leases.remove(&id)?;
        if let Some(request) = references.request {
            self.by_request.remove(&request);
        }
        for node in references.nodes {
            if self.by_node.get(&node) == Some(&id) {
                self.by_node.remove(&node);
            }
        }
        references.scope
    }
}
