//! Who goes where, which nodes are asked for, and which are given back. Pure: a survey and a time in, a decision out.
//!
//! A slot is taken if the note of its node says so, or if the record of one of our own nodes does. The note is the
//! claim; records alone are what Python Nodepool leaves behind. A slot comes free only when both are gone: a Python
//! launcher that starts on these records stumbles over two nodes in one slot.
//!
//! # Requests for several slots
//!
//! Two requests that hold one slot each and wait for another would wait for ever. So the first slot of a request is
//! claimed only when there is room for all that it still needs, beyond what is promised to requests that have begun.
//! A small request may pass a large one, but not for ever: after a minute the large one's need is kept from those
//! behind it, if the machines that are there can meet it at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_driver::backing::{HeldNode, Note, Placement, Survey};
use nodeyard_model::{Label, NodeId, NodeState, RequestId, RequestState, Timestamp};

use crate::options::{LabelOptions, Labels};

/// How long others may pass a request.
const PASSED_FOR: Duration = Duration::from_secs(60);

/// Requests for several slots of a label of which this process has not seen all nodes yet.
pub(crate) type Begun = BTreeMap<(RequestId, Label), Sighted>;

#[derive(Debug, Default)]
pub(crate) struct Sighted {
    /// How many slots it is for.
    pub(crate) size: usize,
    pub(crate) seen: BTreeSet<NodeId>,
}

impl Sighted {
    pub(crate) fn unseen(&self) -> usize {
        self.size.saturating_sub(self.seen.len())
    }
}

/// A request, as far as it is about slots of one label.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    placed: usize,
    waiting: usize,
    since: Option<Timestamp>,
}

/// What a node that is being launched does next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Move {
    /// It has a slot.
    Placed(Placement),
    /// Writes this note, in which it has one.
    Claim {
        on: NodeId,
        version: i32,
        note: Note,
    },
    /// Takes the node that a request was given, for slots of this label.
    Take {
        request: RequestId,
        label: Label,
    },
    Ask,
    /// Waits, and counts on this request.
    Wait(Option<RequestId>),
    /// The request that it counted on has failed.
    Failed(RequestId),
}

/// What is to be done apart from any launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chore {
    Take {
        request: RequestId,
        label: Label,
    },
    Withdraw(RequestId),
    GiveBack {
        node: NodeId,
        version: i32,
        why: &'static str,
    },
}

/// A survey, seen at a moment.
pub(crate) struct Picture<'a> {
    survey: &'a Survey,
    labels: &'a Labels,
    now: Timestamp,
    /// The taken slots of each node.
    taken: BTreeMap<NodeId, BTreeSet<u32>>,
    /// Nodes without a slot, by label.
    waiting: BTreeMap<&'a Label, BTreeSet<NodeId>>,
    groups: BTreeMap<(&'a Label, RequestId), Group>,
    begun: &'a Begun,
}

impl<'a> Picture<'a> {
    pub(crate) fn new(
        survey: &'a Survey,
        labels: &'a Labels,
        begun: &'a Begun,
        now: Timestamp,
    ) -> Self {
        let mut taken: BTreeMap<NodeId, BTreeSet<u32>> = BTreeMap::new();
        let mut placed: BTreeSet<NodeId> = BTreeSet::new();
        for (id, held) in &survey.held {
            let nodes = held.note.iter().flat_map(|note| &note.nodes);
            for (slot, node) in nodes {
                taken.entry(*id).or_default().insert(*slot);
                placed.insert(*node);
            }
        }
        let mut waiting: BTreeMap<&Label, BTreeSet<NodeId>> = BTreeMap::new();
        let mut groups: BTreeMap<(&Label, RequestId), Group> = BTreeMap::new();
        for (id, own) in &survey.own {
            if let Some(placement) = own.placement {
                let slots = taken.entry(placement.backing_node).or_default();
                slots.insert(placement.slot);
            }
            let is_placed = own.placement.is_some() || placed.contains(id);
            let Some(label) = own.label.as_ref().filter(|_| is_placed || own.launching) else {
                continue;
            };
            if !is_placed {
                waiting.entry(label).or_default().insert(*id);
            }
            if let Some(request) = own.request {
                let group = groups.entry((label, request)).or_default();
                group.placed += usize::from(is_placed);
                group.waiting += usize::from(!is_placed);
                group.since = group.since.or(own.since);
            }
        }
        Self {
            survey,
            labels,
            now,
            taken,
            waiting,
            groups,
            begun,
        }
    }

    /// The next step of a launch. `counts_on` is what it waited for so far.
    pub(crate) fn place(
        &mut self,
        node: NodeId,
        label: &'a Label,
        options: &LabelOptions,
        request: Option<RequestId>,
        counts_on: Option<RequestId>,
    ) -> Move {
        if let Some(placement) = self.survey.claim_of(node) {
            return Move::Placed(placement);
        }
        // Its own record may not be in the survey yet.
        self.waiting.entry(label).or_default().insert(node);
        if let Some(request) = request.filter(|_| !self.survey.own.contains_key(&node)) {
            self.groups.entry((label, request)).or_default().waiting += 1;
        }
        let room = self.room_for(label, request);
        if self.vacancies(label).take(room).count() == room
            && let Some((on, held, slot)) = self.vacancies(label).next()
            && let Some(note) = &held.note
        {
            let mut note = note.clone();
            note.nodes.insert(slot, node);
            let version = held.version;
            return Move::Claim { on, version, note };
        }
        if let Some((request, label)) = self.gift(&options.backing_label) {
            return Move::Take { request, label };
        }
        if let Some(request) = counts_on
            && let Some(asked) = self.survey.asked.get(&request)
            && !asked.is_open()
        {
            return Move::Failed(request);
        }
        let open = self.open(&options.backing_label);
        if open.len() < self.need(&options.backing_label) {
            return Move::Ask;
        }
        let counts_on = counts_on.filter(|id| open.contains(id));
        Move::Wait(counts_on.or_else(|| self.place_in_line(node, label, &open)))
    }

    /// What else is to be done, and when there will be more without anything happening.
    pub(crate) fn chores(
        &self,
        counted_on: impl Fn(RequestId) -> bool,
    ) -> (Vec<Chore>, Option<Duration>) {
        let mut chores = Vec::new();
        let backing_labels: BTreeSet<&Label> = self
            .labels
            .values()
            .map(|label| &label.backing_label)
            .collect();
        for label in &backing_labels {
            let surplus = self.open(label).into_iter().skip(self.need(label));
            let surplus = surplus.filter(|request| self.is_mine(*request));
            chores.extend(surplus.map(Chore::Withdraw));
            let gift = self.gift(label);
            chores.extend(gift.map(|(request, label)| Chore::Take { request, label }));
        }
        for (id, asked) in self.survey.asked.iter().filter(|(_, asked)| asked.mine) {
            let unknown = !backing_labels.contains(&asked.label);
            if unknown || !asked.is_open() && !counted_on(*id) {
                chores.push(Chore::Withdraw(*id));
            }
        }
        let mut next: Option<Duration> = None;
        for (id, held) in &self.survey.held {
            match self.end_of(*id, held) {
                End::Now(why) => chores.push(Chore::GiveBack {
                    node: *id,
                    version: held.version,
                    why,
                }),
                End::In(time) => next = Some(next.map_or(time, |next| next.min(time))),
                End::Open => {}
            }
        }
        (chores, next)
    }

    /// How many slots must be free before a node of this request may have one.
    fn room_for(&self, label: &Label, request: Option<RequestId>) -> usize {
        let Some(request) = request else { return 1 };
        let own = self.groups.get(&(label, request));
        let own = own.copied().unwrap_or_default();
        if own.placed > 0 {
            return 1;
        }
        let slots: u64 = self.slots(label);
        let others = self.groups.iter().filter(|((of, id), group)| {
            let fits = u64::try_from(group.waiting).is_ok_and(|waiting| waiting <= slots);
            let passed = group
                .since
                .is_some_and(|since| self.now.since(since) > PASSED_FOR);
            let first = group.placed > 0 || *id < request && passed && fits;
            *of == label && *id != request && first
        });
        let before: usize = others
            .map(|((_, id), group)| self.lack(label, *id, *group))
            .sum();
        before + self.lack(label, request, own).max(1)
    }

    /// The slots that a request still needs.
    fn lack(&self, label: &Label, request: RequestId, group: Group) -> usize {
        let begun = self.begun.get(&(request, label.clone()));
        group.waiting + begun.map_or(0, Sighted::unseen)
    }

    /// All slots for a label that may come free.
    fn slots(&self, label: &Label) -> u64 {
        let held = self.survey.held.values();
        let held = held.filter(|held| self.takes_nodes(held, label));
        let notes = held.filter_map(|held| held.note.as_ref());
        notes.map(|note| u64::from(note.slots)).sum()
    }

    /// Free slots for nodes of a label, of the oldest node first.
    fn vacancies(&self, label: &Label) -> impl Iterator<Item = (NodeId, &'a HeldNode, u32)> {
        let held = self.survey.held.iter();
        held.filter(move |(_, held)| self.takes_nodes(held, label))
            .flat_map(|(id, held)| {
                let slots = held.note.as_ref().map_or(0, |note| note.slots);
                let taken = self.taken.get(id);
                let is_free = move |slot: &u32| taken.is_none_or(|taken| !taken.contains(slot));
                (0..slots)
                    .filter(is_free)
                    .map(move |slot| (*id, held, slot))
            })
    }

    fn takes_nodes(&self, held: &HeldNode, label: &Label) -> bool {
        let Some(note) = &held.note else { return false };
        let in_use = held.node.state == NodeState::InUse;
        in_use && note.label == *label && !note.failed && !self.is_too_old(note)
    }

    fn is_too_old(&self, note: &Note) -> bool {
        let max_age = self.labels.get(&note.label).and_then(|label| label.max_age);
        max_age.is_some_and(|most| self.now.since(note.launched) > most)
    }

    /// Requests that there may come a node of: those that have one, then the oldest.
    fn open(&self, backing_label: &Label) -> Vec<RequestId> {
        let asked = self.survey.asked.iter();
        let open = asked.filter(|(_, asked)| asked.label == *backing_label && asked.is_open());
        let (served, others): (Vec<_>, Vec<_>) =
            open.partition(|(_, asked)| asked.state == RequestState::Fulfilled);
        let all = served.into_iter().chain(others);
        all.map(|(id, _)| *id).collect()
    }

    fn is_mine(&self, request: RequestId) -> bool {
        let asked = self.survey.asked.get(&request);
        asked.is_some_and(|asked| asked.mine)
    }

    /// The labels that need more nodes with this backing label, with how many. A node carries slots of one label.
    fn needs(&self, backing_label: &Label) -> impl Iterator<Item = (&'a Label, usize)> {
        self.waiting.iter().filter_map(move |(label, waiting)| {
            let options = self.labels.get(*label)?;
            if options.backing_label != *backing_label {
                return None;
            }
            let vacant = self.vacancies(label).take(waiting.len()).count();
            let lack = waiting.len() - vacant;
            Some((*label, nodes_for(lack, options.slots)))
        })
    }

    fn need(&self, backing_label: &Label) -> usize {
        self.needs(backing_label).map(|(_, nodes)| nodes).sum()
    }

    /// A node that this process was given and that somebody waits for: the request, and the label of its slots.
    fn gift(&self, backing_label: &Label) -> Option<(RequestId, Label)> {
        let (label, _) = self
            .needs(backing_label)
            .filter(|(_, nodes)| *nodes > 0)
            .max_by_key(|(_, nodes)| *nodes)?;
        let mut asked = self.survey.asked.iter();
        let (request, _) = asked.find(|(_, asked)| {
            asked.mine && asked.state == RequestState::Fulfilled && asked.label == *backing_label
        })?;
        Some((*request, label.clone()))
    }

    /// The request that is for this node if they are served one after the other.
    fn place_in_line(&self, node: NodeId, label: &Label, open: &[RequestId]) -> Option<RequestId> {
        let backing_label = &self.labels.get(label)?.backing_label;
        let others = self.needs(backing_label);
        let others = others.take_while(|(other, _)| *other != label);
        let before: usize = others.map(|(_, nodes)| nodes).sum();
        let waiting = self.waiting.get(label)?;
        let slots = self.labels.get(label)?.slots;
        let place = before + nodes_for(waiting.range(..node).count() + 1, slots) - 1;
        open.get(place).or(open.last()).copied()
    }

    /// How long a node is kept.
    fn end_of(&self, id: NodeId, held: &HeldNode) -> End {
        if self.taken.contains_key(&id) {
            return End::Open;
        }
        let Some(note) = &held.note else {
            let request = held.node.request();
            let is_taken = request.is_some_and(|id| self.survey.asked.contains_key(&id));
            return if is_taken {
                End::Open
            } else {
                End::Now("it was never taken into use")
            };
        };
        if held.node.state != NodeState::InUse {
            return End::Now("its use has ended");
        }
        if note.failed {
            return End::Now("it has failed");
        }
        let Some(label) = self.labels.get(&note.label) else {
            return End::Now("its label has left the configuration");
        };
        if self.is_too_old(note) {
            return End::Now("it is too old");
        }
        if self.waiting.contains_key(&note.label) {
            return End::Open;
        }
        let age = self.now.since(note.launched);
        let idle = self.now.since(note.last_used.unwrap_or(note.launched));
        let grace = label.grace_time.saturating_sub(idle);
        let keep = grace.max(label.min_retention.saturating_sub(age));
        if keep.is_zero() {
            return End::Now("it is not used any more");
        }
        let too_old = label.max_age.map(|most| most.saturating_sub(age));
        // A moment later, so that it is over by then.
        End::In(too_old.map_or(keep, |too_old| keep.min(too_old)) + Duration::from_millis(1))
    }
}

enum End {
    Now(&'static str),
    In(Duration),
    /// Not before something happens.
    Open,
}

fn nodes_for(slots: usize, each: u32) -> usize {
    slots.div_ceil(usize::try_from(each).unwrap_or(usize::MAX).max(1))
}
