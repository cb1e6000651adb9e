//! The requests, and the lines in which they wait.
//!
//! Requests that ask for the same thing get the same verdict, so they stand in one *line*, and a pool looks at
//! the head of each line only. A pass costs as many looks as there are different things asked for, and not as
//! many as there are requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nodeyard_model::{
    Label, LauncherId, NodeId, NodeRequest, ProviderName, RequestId, RequestOrder, RequestState,
    TenantName, Timestamp,
};

use crate::setup::PoolKey;

/// Who asks for nodes that nobody waits for.
pub const MIN_READY_REQUESTOR: &str = "NodePool:min-ready";

/// Everything of a request that a verdict depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) labels: Vec<Label>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) provider: Option<ProviderName>,
    pub(crate) reuse: bool,
    pub(crate) min_ready: bool,
    /// It waits for an image that is being made.
    pub(crate) waits_for_image: bool,
    pub(crate) declined_by: BTreeSet<LauncherId>,
    /// A pool that keeps room for it; only that one serves it.
    pub(crate) held_by: Option<PoolKey>,
}

/// What this launcher has decided on a request, while the record may not show it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// By these pools of ours.
    Declined(BTreeSet<LauncherId>),
    Held(PoolKey),
    Taken(PoolKey),
}

impl Stage {
    pub(crate) fn declined(by: BTreeSet<LauncherId>) -> Self {
        if by.is_empty() {
            Self::Open
        } else {
            Self::Declined(by)
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) order: RequestOrder,
    pub(crate) state: RequestState,
    pub(crate) known_since: Timestamp,
    pub(crate) stage: Stage,
    pub(crate) nodes: Vec<NodeId>,
    /// As the record has it.
    pub(crate) ask: Arc<Ask>,
    line: Option<LineId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LineId(u64);

/// Where a line is: one of ours, or a request that could come next in a pool.
pub(crate) type Head = (RequestOrder, LineId);

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) ask: Arc<Ask>,
    waiting: BTreeMap<RequestOrder, RequestId>,
    pub(crate) route: Route,
}

impl Line {
    pub(crate) fn head(&self) -> Option<RequestId> {
        self.waiting.first_key_value().map(|(_, id)| *id)
    }
}

/// Which pools could serve an ask, and which of ours have to look at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) candidates: Vec<LauncherId>,
    pub(crate) concerned: Vec<PoolKey>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    requests: HashMap<RequestId, Waiting>,
    lines: HashMap<LineId, Line>,
    line_of: HashMap<Arc<Ask>, LineId>,
    heads: HashMap<PoolKey, BTreeSet<Head>>,
    /// Lines that a pool might have to decline; it has not looked at them since something changed.
    unvetted: HashMap<PoolKey, BTreeSet<LineId>>,
    order: BTreeSet<RequestOrder>,
    /// Requests that a pool of ours has taken without having room for them.
    held: BTreeSet<RequestId>,
    /// Pending, and not by our doing; not yet told to whoever looks after such requests.
    abandoned: BTreeSet<RequestId>,
    min_ready: HashMap<Label, BTreeSet<RequestId>>,
    /// Requests for ready nodes that have gone since the nodes were last looked at.
    departed: BTreeMap<RequestId, Label>,
    next_line: u64,
    /// Labels whose requests for ready nodes have changed.
    changed: BTreeSet<Label>,
}

impl Queue {
    pub(crate) fn get(&self, id: RequestId) -> Option<&Waiting> {
        self.requests.get(&id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.requests.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(&id)
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn line_of(&self, id: RequestId) -> Option<&Line> {
        self.lines.get(&self.requests.get(&id)?.line?)
    }

    /// The first head after `last` that `pool` has to look at.
    pub(crate) fn next_head(&self, pool: &PoolKey, last: Option<Head>) -> Option<Head> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = last.map_or(Unbounded, Excluded);
        let heads = self.heads.get(pool)?;
        heads.range((after, Unbounded)).next().copied()
    }

    /// How many requests that wait come before `order`.
    pub(crate) fn position(&self, order: RequestOrder) -> usize {
        self.order.range(..order).count()
    }

    pub(crate) fn take_abandoned(&mut self) -> BTreeSet<RequestId> {
        std::mem::take(&mut self.abandoned)
    }

    /// Requests that a pool of ours has taken without having room for them.
    pub(crate) fn held(&self) -> impl Iterator<Item = (RequestId, &PoolKey, &Waiting)> {
        self.held.iter().filter_map(|id| {
            let request = self.requests.get(id)?;
            match &request.stage {
                Stage::Held(key) => Some((*id, key, request)),
                _ => None,
            }
        })
    }

    /// How many requests for one ready node with this label there are, of any launcher.
    pub(crate) fn min_ready(&self, label: &Label) -> usize {
        self.min_ready.get(label).map_or(0, BTreeSet::len)
    }

    /// The labels whose requests for ready nodes, those that have gone included, have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Label> {
        std::mem::take(&mut self.changed)
    }

    /// The label of each request for a ready node that has gone.
    pub(crate) fn departed(&self) -> &BTreeMap<RequestId, Label> {
        &self.departed
    }

    pub(crate) fn forget_departed(&mut self, id: RequestId) {
        self.changed.extend(self.departed.remove(&id));
    }

    pub(crate) fn put(
        &mut self,
        id: RequestId,
        record: &NodeRequest,
        now: Timestamp,
        route: impl Fn(&Ask) -> Route,
    ) {
        let (known_since, stage) = match self.remove(id) {
            Some(old) => (old.known_since, stage_after(old.stage, record)),
            None => (now, Stage::Open),
        };
        self.departed.remove(&id);
        let min_ready = record.requestor.as_deref() == Some(MIN_READY_REQUESTOR);
        if min_ready && let [label] = record.labels.as_slice() {
            self.min_ready.entry(label.clone()).or_default().insert(id);
            self.changed.insert(label.clone());
        }
        let waiting = Waiting {
            order: record.order(id),
            state: record.state,
            known_since,
            stage,
            nodes: record.nodes.clone(),
            ask: Arc::new(Ask {
                labels: record.labels.clone(),
                tenant: record.tenant_name.clone(),
                provider: record.provider.clone(),
                reuse: record.reuse,
                min_ready,
                waits_for_image: record.waits_for_image(),
                declined_by: record.declined_by.iter().cloned().collect(),
                held_by: None,
            }),
            line: None,
        };
        self.requests.insert(id, waiting);
        self.judge_abandoned(id);
        self.join(id, route);
    }

    fn judge_abandoned(&mut self, id: RequestId) {
        let request = self.requests.get(&id);
        let abandoned = request.is_some_and(|request| {
            request.state == RequestState::Pending
                && matches!(request.stage, Stage::Open | Stage::Declined(_))
        });
        if abandoned {
            self.abandoned.insert(id);
        } else {
            self.abandoned.remove(&id);
        }
    }

    /// Changes what we have decided on a request, and lets it change lines.
    pub(crate) fn set_stage(&mut self, id: RequestId, stage: Stage, route: impl Fn(&Ask) -> Route) {
        self.leave(id);
        if let Some(request) = self.requests.get_mut(&id) {
            request.stage = stage;
        }
        self.judge_abandoned(id);
        self.join(id, route);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        self.leave(id);
        self.held.remove(&id);
        self.abandoned.remove(&id);
        let old = self.requests.remove(&id)?;
        if old.ask.min_ready
            && let [label] = old.ask.labels.as_slice()
            && let Some(requests) = self.min_ready.get_mut(label)
        {
            requests.remove(&id);
            self.departed.insert(id, label.clone());
            self.changed.insert(label.clone());
        }
        Some(old)
    }

    fn join(&mut self, id: RequestId, route: impl Fn(&Ask) -> Route) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if matches!(request.stage, Stage::Held(_)) {
            self.held.insert(id);
        } else {
            self.held.remove(&id);
        }
        let Some(ask) = waiting_for(request) else {
            return;
        };
        let line_id = match self.line_of.get(&ask) {
            Some(line) => *line,
            None => {
                let line_id = LineId(self.next_line);
                self.next_line += 1;
                self.line_of.insert(ask.clone(), line_id);
                let line = Line {
                    route: route(&ask),
                    ask,
                    waiting: BTreeMap::new(),
                };
                for pool in &line.route.concerned {
                    let lines = self.unvetted.entry(pool.clone()).or_default();
                    lines.insert(line_id);
                }
                self.lines.insert(line_id, line);
                line_id
            }
        };
        request.line = Some(line_id);
        let order = request.order;
        self.order.insert(order);
        self.edit_line(line_id, |line| {
            line.waiting.insert(order, id);
        });
    }

    fn leave(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let Some(line_id) = request.line.take() else {
            return;
        };
        let order = request.order;
        self.order.remove(&order);
        self.edit_line(line_id, |line| {
            line.waiting.remove(&order);
        });
        if let Some(line) = self.lines.get(&line_id)
            && line.waiting.is_empty()
        {
            self.line_of.remove(&line.ask);
            for pool in &line.route.concerned {
                if let Some(lines) = self.unvetted.get_mut(pool) {
                    lines.remove(&line_id);
                }
            }
            self.lines.remove(&line_id);
        }
    }

    /// Gives every line its route anew.
    pub(crate) fn reroute(&mut self, route: impl Fn(&Ask) -> Route) {
        self.heads.clear();
        self.unvetted.clear();
        for (id, line) in &mut self.lines {
            line.route = route(&line.ask);
            for pool in &line.route.concerned {
                if let Some((order, _)) = line.waiting.first_key_value() {
                    let heads = self.heads.entry(pool.clone()).or_default();
                    heads.insert((*order, *id));
                }
                self.unvetted.entry(pool.clone()).or_default().insert(*id);
            }
        }
    }

    /// A pool may have to decline what it could serve before, of the lines that are concerned.
    pub(crate) fn unvet(&mut self, pool: &PoolKey, concerns: impl Fn(&Ask) -> bool) {
        let heads = self.heads.get(pool).into_iter().flatten();
        let lines = heads.map(|(_, line)| *line);
        let lines = lines.filter(|id| self.lines.get(id).is_some_and(|of| concerns(&of.ask)));
        let unvetted = self.unvetted.entry(pool.clone()).or_default();
        unvetted.extend(lines);
    }

    /// A pool has looked at a line and does not decline it.
    pub(crate) fn vet(&mut self, pool: &PoolKey, line: LineId) {
        if let Some(lines) = self.unvetted.get_mut(pool) {
            lines.remove(&line);
        }
    }

    pub(crate) fn unvetted(&self, pool: &PoolKey) -> Vec<LineId> {
        self.unvetted
            .get(pool)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// Changes who waits in a line, and keeps the pools' heads in step.
    fn edit_line(&mut self, id: LineId, edit: impl FnOnce(&mut Line)) {
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        let head = |line: &Line| {
            line.waiting
                .first_key_value()
                .map(|(order, _)| (*order, id))
        };
        let before = head(line);
        edit(line);
        let after = head(line);
        if before == after {
            return;
        }
        for pool in &line.route.concerned {
            let heads = match self.heads.get_mut(pool) {
                Some(heads) => heads,
                None => self.heads.entry(pool.clone()).or_default(),
            };
            if let Some(before) = before {
                heads.remove(&before);
            }
            heads.extend(after);
        }
    }
}

/// What a request waits for, given what we have decided on it; none if it does not wait for us.
fn waiting_for(request: &Waiting) -> Option<Arc<Ask>> {
    let ask = &request.ask;
    match &request.stage {
        Stage::Taken(_) => None,
        Stage::Held(pool) => Some(Arc::new(Ask {
            held_by: Some(pool.clone()),
            ..Ask::clone(ask)
        })),
        _ if request.state != RequestState::Requested => None,
        Stage::Open => Some(ask.clone()),
        Stage::Declined(by) => {
            let mut ask = Ask::clone(ask);
            ask.declined_by.extend(by.iter().cloned());
            Some(Arc::new(ask))
        }
    }
}

/// A record that shows what we decided, or that the request is done, ends the stage.
fn stage_after(stage: Stage, record: &NodeRequest) -> Stage {
    match stage {
        _ if record.state.is_final() => Stage::Open,
        Stage::Declined(mut by) => {
            by.retain(|id| !record.declined_by.contains(id));
            Stage::declined(by)
        }
        stage => stage,
    }
}
