//! Pure decisions: which node gets which slot, which backing nodes are requested, and which are released.
//!
//! A slot is occupied if the slot table of its backing node or the record of a node says so. The table comes first;
//! Python Nodepool leaves only records. A slot becomes free when both are gone, because a Python launcher that loads
//! these records fails on two nodes in one slot.
//!
//! # Requests for several slots
//!
//! Two requests that have one slot each and wait for another would deadlock. So the first slot of a request is assigned
//! only when there are enough for the whole request, beyond those reserved for requests that have some. A smaller request
//! may overtake a larger one for a minute; then slots are reserved for the larger one, if the existing backing nodes have
//! as many at all.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_driver::backing::{BackingNode, BackingSnapshot, Placement, SlotTable};
use nodeyard_model::{Label, NodeId, NodeState, RequestId, RequestState, Timestamp};

use crate::options::{LabelOptions, Labels};
use crate::survey::{RequestGroup, Survey};

/// How long smaller requests may overtake a request.
const OVERTAKING_LIMIT: Duration = Duration::from_secs(60);
/// The clock is not precise to less.
const MOMENT: Duration = Duration::from_millis(1);

/// Requests for several slots of a label, while not all of their nodes have a record.
pub(crate) type PartialRequests = BTreeMap<(RequestId, Label), PartialRequest>;

#[derive(Debug, Default)]
pub(crate) struct PartialRequest {
    /// How many slots the request is for.
    pub(crate) size: usize,
    pub(crate) seen: BTreeSet<NodeId>,
}

impl PartialRequest {
    pub(crate) fn unseen(&self) -> usize {
        self.size.saturating_sub(self.seen.len())
    }
}

/// The next action of a launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LaunchAction {
    /// The node has a slot.
    Done(Placement),
    /// Writes this table, in which the node has a slot.
    AssignSlot {
        backing_node: NodeId,
        version: i32,
        slots: SlotTable,
    },
    /// Accepts the node that a request was given, for slots of this label.
    AcceptNode {
        request: RequestId,
        label: Label,
    },
    RequestNode,
    /// Waits for the backing node of this request.
    Wait(Option<RequestId>),
    /// The request that the launch waited for has failed.
    Fail(RequestId),
}

/// An action that belongs to no launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Maintenance {
    AcceptNode {
        request: RequestId,
        label: Label,
    },
    WithdrawRequest(RequestId),
    ReleaseNode {
        node: NodeId,
        version: i32,
        reason: &'static str,
    },
}

/// Decides by a snapshot at one moment.
pub(crate) struct Planner<'a> {
    snapshot: &'a BackingSnapshot,
    survey: Cow<'a, Survey>,
    labels: &'a Labels,
    now: Timestamp,
    partial: &'a PartialRequests,
}

impl<'a> Planner<'a> {
    /// `survey` is that of the snapshot.
    pub(crate) fn new(
        snapshot: &'a BackingSnapshot,
        survey: &'a Survey,
        labels: &'a Labels,
        partial: &'a PartialRequests,
        now: Timestamp,
    ) -> Self {
        Self {
            snapshot,
            survey: Cow::Borrowed(survey),
            labels,
            now,
            partial,
        }
    }

    /// Returns the next action of a launch that has waited for the request `awaited` so far.
    pub(crate) fn launch(
        &mut self,
        node: NodeId,
        label: &'a Label,
        options: &LabelOptions,
        request: Option<RequestId>,
        awaited: Option<RequestId>,
    ) -> LaunchAction {
        if let Some(placement) = self.survey.placements.get(&node) {
            return LaunchAction::Done(*placement);
        }
        // The snapshot may lack its record.
        if !self.survey.is_waiting(label, node) {
            let is_seen = self.snapshot.slot_nodes.contains_key(&node);
            let request = request.filter(|_| !is_seen);
            self.survey.to_mut().add_waiting(label, node, request);
        }
        let required = self.required_slots(label, request);
        if self.free_slots(label).take(required).count() == required
            && let Some((backing_node, backing, slot)) = self.free_slots(label).next()
            && let Some(table) = &backing.slots
        {
            let mut slots = table.clone();
            slots.nodes.insert(slot, node);
            return LaunchAction::AssignSlot {
                backing_node,
                version: backing.version,
                slots,
            };
        }
        if let Some((request, label)) = self.given_node(&options.backing_label) {
            return LaunchAction::AcceptNode { request, label };
        }
        if let Some(id) = awaited
            && let Some(request) = self.snapshot.requests.get(&id)
            && !request.is_open()
        {
            return LaunchAction::Fail(id);
        }
        let open = self.open_requests(&options.backing_label);
        if open.len() < self.needed_nodes(&options.backing_label) {
            return LaunchAction::RequestNode;
        }
        let awaited = awaited.filter(|id| open.contains(id));
        LaunchAction::Wait(awaited.or_else(|| self.expected_request(node, label, &open)))
    }

    /// Returns the actions that belong to no launch, and when the next one is due if nothing changes.
    pub(crate) fn maintenance(
        &self,
        is_awaited: impl Fn(RequestId) -> bool,
    ) -> (Vec<Maintenance>, Option<Duration>) {
        let mut actions = Vec::new();
        let backing_labels: BTreeSet<&Label> = self
            .labels
            .values()
            .map(|label| &label.backing_label)
            .collect();
        for label in &backing_labels {
            let open = self.open_requests(label).into_iter();
            let surplus = open
                .skip(self.needed_nodes(label))
                .filter(|request| self.is_of_this_process(*request));
            actions.extend(surplus.map(Maintenance::WithdrawRequest));
            let given = self.given_node(label);
            actions
                .extend(given.map(|(request, label)| Maintenance::AcceptNode { request, label }));
        }
        for (id, request) in &self.snapshot.requests {
            let unknown = !backing_labels.contains(&request.label);
            let failed = !request.is_open() && !is_awaited(*id);
            if request.of_this_process && (unknown || failed) {
                actions.push(Maintenance::WithdrawRequest(*id));
            }
        }
        let mut next: Option<Duration> = None;
        for (id, backing) in &self.snapshot.backing_nodes {
            match self.retention(*id, backing) {
                Retention::Ended(reason) => actions.push(Maintenance::ReleaseNode {
                    node: *id,
                    version: backing.version,
                    reason,
                }),
                Retention::EndsIn(time) => next = Some(next.map_or(time, |next| next.min(time))),
                Retention::Unlimited => {}
            }
        }
        (actions, next)
    }

    /// Returns how many slots must be free before a node of this request may get one.
    fn required_slots(&self, label: &Label, request: Option<RequestId>) -> usize {
        let Some(request) = request else { return 1 };
        let own = self.survey.groups.get(&(label.clone(), request));
        let own = own.copied().unwrap_or_default();
        if own.placed > 0 {
            return 1;
        }
        let slots: u64 = self.usable_slots(label);
        let others = self.survey.groups.iter().filter(|((of, id), group)| {
            let fits = u64::try_from(group.waiting).is_ok_and(|waiting| waiting <= slots);
            let overtaken = group
                .created
                .is_some_and(|created| self.now.since(created) > OVERTAKING_LIMIT);
            let first = group.placed > 0 || *id < request && overtaken && fits;
            of == label && *id != request && first
        });
        let before: usize = others
            .map(|((_, id), group)| self.missing_slots(label, *id, *group))
            .sum();
        before + self.missing_slots(label, request, own).max(1)
    }

    /// Returns how many slots a request still needs.
    fn missing_slots(&self, label: &Label, request: RequestId, group: RequestGroup) -> usize {
        let partial = self.partial.get(&(request, label.clone()));
        group.waiting + partial.map_or(0, PartialRequest::unseen)
    }

    /// Returns how many slots for a label exist, free or occupied.
    fn usable_slots(&self, label: &Label) -> u64 {
        let usable = self.snapshot.backing_nodes.values();
        let usable = usable.filter(|backing| self.accepts_nodes(backing, label));
        let tables = usable.filter_map(|backing| backing.slots.as_ref());
        tables.map(|table| u64::from(table.slots)).sum()
    }

    /// Returns the free slots for nodes of a label, those of the oldest backing node first.
    fn free_slots(&self, label: &Label) -> impl Iterator<Item = (NodeId, &'a BackingNode, u32)> {
        let backing_nodes = self.snapshot.backing_nodes.iter();
        backing_nodes
            .filter(move |(_, backing)| self.accepts_nodes(backing, label))
            .flat_map(|(id, backing)| {
                let slots = backing.slots.as_ref().map_or(0, |table| table.slots);
                let occupied = self.survey.occupied.get(id);
                let is_free =
                    move |slot: &u32| occupied.is_none_or(|occupied| !occupied.contains(slot));
                (0..slots)
                    .filter(is_free)
                    .map(move |slot| (*id, backing, slot))
            })
    }

    fn accepts_nodes(&self, backing: &BackingNode, label: &Label) -> bool {
        let Some(table) = &backing.slots else {
            return false;
        };
        let in_use = backing.node.state == NodeState::InUse;
        in_use && table.label == *label && !table.failed && !self.is_too_old(table)
    }

    fn is_too_old(&self, table: &SlotTable) -> bool {
        let label = self.labels.get(&table.label);
        let max_age = label.and_then(|label| label.max_age);
        max_age.is_some_and(|most| self.now.since(table.launched) > most)
    }

    /// Returns the open requests: fulfilled ones first, then by age.
    fn open_requests(&self, backing_label: &Label) -> Vec<RequestId> {
        let open = self.snapshot.requests.iter();
        let open = open.filter(|(_, request)| request.label == *backing_label && request.is_open());
        let (fulfilled, others): (Vec<_>, Vec<_>) =
            open.partition(|(_, request)| request.state == RequestState::Fulfilled);
        let all = fulfilled.into_iter().chain(others);
        all.map(|(id, _)| *id).collect()
    }

    fn is_of_this_process(&self, request: RequestId) -> bool {
        let request = self.snapshot.requests.get(&request);
        request.is_some_and(|request| request.of_this_process)
    }

    /// Returns how many more backing nodes each label needs. A backing node has slots of one label.
    fn needs(&self, backing_label: &Label) -> impl Iterator<Item = (&Label, usize)> {
        self.survey
            .waiting
            .iter()
            .filter_map(move |(label, waiting)| {
                let options = self.labels.get(label)?;
                if options.backing_label != *backing_label {
                    return None;
                }
                let free = self.free_slots(label).take(waiting.len()).count();
                let missing = waiting.len() - free;
                Some((label, nodes_for(missing, options.slots)))
            })
    }

    fn needed_nodes(&self, backing_label: &Label) -> usize {
        self.needs(backing_label).map(|(_, nodes)| nodes).sum()
    }

    /// Returns a request of this process that was given a needed node, and the label of its slots.
    fn given_node(&self, backing_label: &Label) -> Option<(RequestId, Label)> {
        let (label, _) = self
            .needs(backing_label)
            .filter(|(_, nodes)| *nodes > 0)
            .max_by_key(|(_, nodes)| *nodes)?;
        let mut requests = self.snapshot.requests.iter();
        let (id, _) = requests.find(|(_, request)| {
            let fulfilled = request.state == RequestState::Fulfilled;
            request.of_this_process && fulfilled && request.label == *backing_label
        })?;
        Some((*id, label.clone()))
    }

    /// Returns the request whose backing node this node gets a slot on, if nodes are served in order.
    fn expected_request(
        &self,
        node: NodeId,
        label: &Label,
        open: &[RequestId],
    ) -> Option<RequestId> {
        let backing_label = &self.labels.get(label)?.backing_label;
        let others = self.needs(backing_label);
        let others = others.take_while(|(other, _)| *other != label);
        let before: usize = others.map(|(_, nodes)| nodes).sum();
        let waiting = self.survey.waiting.get(label)?;
        let slots = self.labels.get(label)?.slots;
        let position = before + nodes_for(waiting.range(..node).count() + 1, slots) - 1;
        open.get(position).or(open.last()).copied()
    }

    /// Returns how long a backing node is kept.
    fn retention(&self, id: NodeId, backing: &BackingNode) -> Retention {
        if self.survey.occupied.contains_key(&id) {
            return Retention::Unlimited;
        }
        let Some(table) = &backing.slots else {
            let request = backing.node.request();
            let is_requested = request.is_some_and(|id| self.snapshot.requests.contains_key(&id));
            return if is_requested {
                Retention::Unlimited
            } else {
                Retention::Ended("never used")
            };
        };
        if backing.node.state != NodeState::InUse {
            return Retention::Ended("use has ended");
        }
        if table.failed {
            return Retention::Ended("failed");
        }
        let Some(label) = self.labels.get(&table.label) else {
            return Retention::Ended("label was removed from the configuration");
        };
        if self.is_too_old(table) {
            return Retention::Ended("max-age exceeded");
        }
        if self.survey.waiting.contains_key(&table.label) {
            return Retention::Unlimited;
        }
        let age = self.now.since(table.launched);
        let idle = self.now.since(table.last_used.unwrap_or(table.launched));
        let grace = label.grace_time.saturating_sub(idle);
        let keep = grace.max(label.min_retention.saturating_sub(age));
        if keep.is_zero() {
            return Retention::Ended("idle");
        }
        let too_old = label.max_age.map(|most| most.saturating_sub(age));
        // A moment later, so that it is over by then.
        Retention::EndsIn(too_old.map_or(keep, |too_old| keep.min(too_old)) + MOMENT)
    }
}

enum Retention {
    Ended(&'static str),
    EndsIn(Duration),
    /// Until something changes.
    Unlimited,
}

fn nodes_for(slots: usize, each: u32) -> usize {
    slots.div_ceil(usize::try_from(each).unwrap_or(usize::MAX).max(1))
}
