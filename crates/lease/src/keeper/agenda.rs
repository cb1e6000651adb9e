//! Which leases and scopes are to be looked at, and when.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nodeyard_model::{NodeId, RequestId, Timestamp};

use crate::ids::{LeaseId, ScopeId};
use crate::lease::Lease;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    Lease(LeaseId),
    Scope(ScopeId),
}

/// What carries the mark of a lease; to be undone if there is no such lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Suspects {
    pub(super) requests: BTreeSet<RequestId>,
    pub(super) nodes: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// To be looked at as soon as possible.
    due: BTreeMap<Subject, Suspects>,
    /// Being looked at.
    busy: HashSet<Subject>,
    later: BTreeSet<(Timestamp, Subject)>,
    times: HashMap<Subject, Timestamp>,
    leases: HashMap<LeaseId, Links>,
    by_request: HashMap<RequestId, LeaseId>,
    by_node: HashMap<NodeId, LeaseId>,
}

/// What a lease speaks of.
#[derive(Debug, Default)]
struct Links {
    request: Option<RequestId>,
    nodes: Vec<NodeId>,
    scope: Option<ScopeId>,
}

impl Agenda {
    pub(super) fn add(&mut self, subject: Subject) {
        self.due.entry(subject).or_default();
    }

    /// A request has changed, which carries the mark of a lease or did so before.
    pub(super) fn request_changed(&mut self, request: RequestId, mark: Option<LeaseId>) {
        if let Some(lease) = mark {
            let suspects = self.due.entry(Subject::Lease(lease)).or_default();
            suspects.requests.insert(request);
        } else if let Some(lease) = self.by_request.get(&request) {
            self.add(Subject::Lease(*lease));
        }
    }

    /// A node has changed; `mark` is that of a node in use.
    pub(super) fn node_changed(&mut self, node: NodeId, mark: Option<LeaseId>) {
        if let Some(lease) = mark {
            let suspects = self.due.entry(Subject::Lease(lease)).or_default();
            suspects.nodes.insert(node);
        }
        if let Some(lease) = self.by_node.get(&node) {
            self.add(Subject::Lease(*lease));
        }
    }

    /// A lease has appeared, changed or vanished.
    pub(super) fn lease_changed(&mut self, id: LeaseId, lease: Option<&Lease>) {
        self.unlink(id);
        if let Some(lease) = lease {
            let links = Links {
                request: lease.request,
                nodes: lease.parts.iter().map(|part| part.node).collect(),
                scope: lease.scope,
            };
            self.by_request
                .extend(links.request.map(|request| (request, id)));
            self.by_node
                .extend(links.nodes.iter().map(|node| (*node, id)));
            if let (Some(scope), false) = (links.scope, lease.phase.is_alive()) {
                self.add(Subject::Scope(scope));
            }
            self.leases.insert(id, links);
            self.add(Subject::Lease(id));
        }
    }

    /// A scope has appeared, changed or vanished: that concerns its leases.
    pub(super) fn scope_changed(&mut self, scope: ScopeId) {
        self.add(Subject::Scope(scope));
        let leases = self.leases.iter();
        let owned = leases.filter(|(_, links)| links.scope == Some(scope));
        let owned: Vec<LeaseId> = owned.map(|(id, _)| *id).collect();
        for lease in owned {
            self.add(Subject::Lease(lease));
        }
    }

    fn unlink(&mut self, id: LeaseId) {
        let Some(links) = self.leases.remove(&id) else {
            return;
        };
        if let Some(request) = links.request {
            self.by_request.remove(&request);
        }
        for node in links.nodes {
            if self.by_node.get(&node) == Some(&id) {
                self.by_node.remove(&node);
            }
        }
        if let Some(scope) = links.scope {
            self.add(Subject::Scope(scope));
        }
    }

    /// The next one to look at, if nobody does so already.
    pub(super) fn next(&mut self) -> Option<(Subject, Suspects)> {
        let free = self.due.keys().find(|subject| !self.busy.contains(subject));
        let subject = *free?;
        self.busy.insert(subject);
        self.forget_time(subject);
        Some((subject, self.due.remove(&subject).unwrap_or_default()))
    }

    /// It has been looked at, and is to be again at a time.
    pub(super) fn done(&mut self, subject: Subject, again: Option<Timestamp>) {
        self.busy.remove(&subject);
        self.forget_time(subject);
        if let Some(at) = again {
            self.later.insert((at, subject));
            self.times.insert(subject, at);
        }
    }

    fn forget_time(&mut self, subject: Subject) {
        if let Some(at) = self.times.remove(&subject) {
            self.later.remove(&(at, subject));
        }
    }

    /// What is due by now is to be looked at.
    pub(super) fn tick(&mut self, now: Timestamp) {
        while let Some((at, subject)) = self.later.first().copied()
            && at <= now
        {
            self.forget_time(subject);
            self.add(subject);
        }
    }

    /// When the next one is due.
    pub(super) fn next_time(&self) -> Option<Timestamp> {
        self.later.first().map(|(at, _)| *at)
    }
}
