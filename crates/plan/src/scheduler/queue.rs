//! Requests, and the lines in which they wait.
//!
//! Requests with the same [`RequestSpec`] get the same verdict, so they form one *line*, and a pool evaluates only the
//! head of each line. The cost of a pass is the number of lines, whatever the number of requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nodeyard_model::{
    Label, LauncherId, NodeId, NodeRequest, ProviderName, RequestId, RequestOrder, RequestState,
    TenantName, Timestamp,
};

use crate::setup::PoolKey;

/// The requestor of min-ready requests.
pub const MIN_READY_REQUESTOR: &str = "NodePool:min-ready";

/// The parts of a request that a verdict depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestSpec {
    pub(crate) labels: Vec<Label>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) provider: Option<ProviderName>,
    pub(crate) reuse: bool,
    pub(crate) min_ready: bool,
    /// It waits for an image that is being made.
    pub(crate) waits_for_image: bool,
    pub(crate) declined_by: BTreeSet<LauncherId>,
    /// The pool that has reserved it; only that one serves it.
    pub(crate) held_by: Option<PoolKey>,
}

/// The decision of this launcher on a request, which the record may not show yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// Declined by these pools of ours.
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
pub(crate) struct QueuedRequest {
    pub(crate) order: RequestOrder,
    pub(crate) state: RequestState,
    pub(crate) known_since: Timestamp,
    pub(crate) stage: Stage,
    pub(crate) nodes: Vec<NodeId>,
    /// The spec of the record.
    pub(crate) spec: Arc<RequestSpec>,
    line: Option<LineId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LineId(u64);

/// The position of the head of a line in the order of service.
pub(crate) type LineHead = (RequestOrder, LineId);

#[derive(Debug)]
pub(crate) struct RequestLine {
    pub(crate) spec: Arc<RequestSpec>,
    waiting: BTreeMap<RequestOrder, RequestId>,
    pub(crate) route: Route,
}

impl RequestLine {
    pub(crate) fn head(&self) -> Option<RequestId> {
        self.waiting.first_key_value().map(|(_, id)| *id)
    }
}

/// The pools that could serve a spec, and those of ours that have to evaluate it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) candidates: Vec<LauncherId>,
    pub(crate) concerned: Vec<PoolKey>,
}

#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    requests: HashMap<RequestId, QueuedRequest>,
    lines: HashMap<LineId, RequestLine>,
    line_of: HashMap<Arc<RequestSpec>, LineId>,
    heads: HashMap<PoolKey, BTreeSet<LineHead>>,
    /// Lines that a pool has not evaluated since it may have to decline them.
    unchecked: HashMap<PoolKey, BTreeSet<LineId>>,
    order: BTreeSet<RequestOrder>,
    /// Requests that a pool of ours has reserved.
    held: BTreeSet<RequestId>,
    /// Pending requests that this launcher does not serve and has not returned yet.
    abandoned: BTreeSet<RequestId>,
    min_ready: HashMap<Label, BTreeSet<RequestId>>,
    /// Min-ready requests that were deleted since the nodes were last read.
    removed_min_ready: BTreeMap<RequestId, Label>,
    next_line: u64,
    /// Labels with changed min-ready requests.
    changed: BTreeSet<Label>,
}

impl RequestQueue {
    pub(crate) fn get(&self, id: RequestId) -> Option<&QueuedRequest> {
        self.requests.get(&id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.requests.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn line(&self, id: LineId) -> Option<&RequestLine> {
        self.lines.get(&id)
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn line_of(&self, id: RequestId) -> Option<&RequestLine> {
        self.lines.get(&self.requests.get(&id)?.line?)
    }

    /// Returns the first head after `last` that `pool` has to evaluate.
    pub(crate) fn next_head(&self, pool: &PoolKey, last: Option<LineHead>) -> Option<LineHead> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = last.map_or(Unbounded, Excluded);
        let heads = self.heads.get(pool)?;
        heads.range((after, Unbounded)).next().copied()
    }

    /// Returns how many waiting requests come before `order`.
    pub(crate) fn position(&self, order: RequestOrder) -> usize {
        self.order.range(..order).count()
    }

    pub(crate) fn take_abandoned(&mut self) -> BTreeSet<RequestId> {
        std::mem::take(&mut self.abandoned)
    }

    /// Returns the requests that a pool of ours has reserved.
    pub(crate) fn held(&self) -> impl Iterator<Item = (RequestId, &PoolKey, &QueuedRequest)> {
        self.held.iter().filter_map(|id| {
            let request = self.requests.get(id)?;
            match &request.stage {
                Stage::Held(key) => Some((*id, key, request)),
                _ => None,
            }
        })
    }

    /// Returns the number of min-ready requests with this label, of any launcher.
    pub(crate) fn min_ready(&self, label: &Label) -> usize {
        self.min_ready.get(label).map_or(0, BTreeSet::len)
    }

    /// Returns the labels with changed or deleted min-ready requests since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Label> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the label of each deleted min-ready request.
    pub(crate) fn removed_min_ready(&self) -> &BTreeMap<RequestId, Label> {
        &self.removed_min_ready
    }

    pub(crate) fn forget_removed_min_ready(&mut self, id: RequestId) {
        self.changed.extend(self.removed_min_ready.remove(&id));
    }

    pub(crate) fn put(
        &mut self,
        id: RequestId,
        record: &NodeRequest,
        now: Timestamp,
        route: impl Fn(&RequestSpec) -> Route,
    ) {
        let (known_since, stage) = match self.remove(id) {
            Some(old) => (old.known_since, stage_after(old.stage, record)),
            None => (now, Stage::Open),
        };
        self.removed_min_ready.remove(&id);
        let min_ready = record.requestor.as_deref() == Some(MIN_READY_REQUESTOR);
        if min_ready && let [label] = record.labels.as_slice() {
            self.min_ready.entry(label.clone()).or_default().insert(id);
            self.changed.insert(label.clone());
        }
        let waiting = QueuedRequest {
            order: record.order(id),
            state: record.state,
            known_since,
            stage,
            nodes: record.nodes.clone(),
            spec: Arc::new(RequestSpec {
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
        self.update_abandoned(id);
        self.join(id, route);
    }

    fn update_abandoned(&mut self, id: RequestId) {
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

    /// Sets the decision on a request, and moves it to another line.
    pub(crate) fn set_stage(
        &mut self,
        id: RequestId,
        stage: Stage,
        route: impl Fn(&RequestSpec) -> Route,
    ) {
        self.leave(id);
        if let Some(request) = self.requests.get_mut(&id) {
            request.stage = stage;
        }
        self.update_abandoned(id);
        self.join(id, route);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<QueuedRequest> {
        self.leave(id);
        self.held.remove(&id);
        self.abandoned.remove(&id);
        let old = self.requests.remove(&id)?;
        if old.spec.min_ready
            && let [label] = old.spec.labels.as_slice()
            && let Some(requests) = self.min_ready.get_mut(label)
        {
            requests.remove(&id);
            self.removed_min_ready.insert(id, label.clone());
            self.changed.insert(label.clone());
        }
        Some(old)
    }

    fn join(&mut self, id: RequestId, route: impl Fn(&RequestSpec) -> Route) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if matches!(request.stage, Stage::Held(_)) {
            self.held.insert(id);
        } else {
            self.held.remove(&id);
        }
        let Some(spec) = spec_in_queue(request) else {
            return;
        };
        let line_id = match self.line_of.get(&spec) {
            Some(line) => *line,
            None => {
                let line_id = LineId(self.next_line);
                self.next_line += 1;
                self.line_of.insert(spec.clone(), line_id);
                let line = RequestLine {
                    route: route(&spec),
                    spec,
                    waiting: BTreeMap::new(),
                };
                for pool in &line.route.concerned {
                    let lines = self.unchecked.entry(pool.clone()).or_default();
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
            self.line_of.remove(&line.spec);
            for pool in &line.route.concerned {
                if let Some(lines) = self.unchecked.get_mut(pool) {
                    lines.remove(&line_id);
                }
            }
            self.lines.remove(&line_id);
        }
    }

    /// Recomputes the route of every line.
    pub(crate) fn reroute(&mut self, route: impl Fn(&RequestSpec) -> Route) {
        self.heads.clear();
        self.unchecked.clear();
        for (id, line) in &mut self.lines {
            line.route = route(&line.spec);
            for pool in &line.route.concerned {
                if let Some((order, _)) = line.waiting.first_key_value() {
                    let heads = self.heads.entry(pool.clone()).or_default();
                    heads.insert((*order, *id));
                }
                self.unchecked.entry(pool.clone()).or_default().insert(*id);
            }
        }
    }

    /// Marks lines as unchecked: the pool may have to decline them now.
    pub(crate) fn mark_unchecked(
        &mut self,
        pool: &PoolKey,
        concerns: impl Fn(&RequestSpec) -> bool,
    ) {
        let heads = self.heads.get(pool).into_iter().flatten();
        let lines = heads.map(|(_, line)| *line);
        let lines = lines.filter(|id| self.lines.get(id).is_some_and(|of| concerns(&of.spec)));
        let unchecked = self.unchecked.entry(pool.clone()).or_default();
        unchecked.extend(lines);
    }

    /// Marks a line as checked: the pool does not decline it.
    pub(crate) fn mark_checked(&mut self, pool: &PoolKey, line: LineId) {
        if let Some(lines) = self.unchecked.get_mut(pool) {
            lines.remove(&line);
        }
    }

    pub(crate) fn unchecked(&self, pool: &PoolKey) -> Vec<LineId> {
        self.unchecked
            .get(pool)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// Changes the requests of a line, and updates the heads of the pools.
    fn edit_line(&mut self, id: LineId, edit: impl FnOnce(&mut RequestLine)) {
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        let head = |line: &RequestLine| {
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

/// Returns the spec under which a request waits, given our decision on it. None if it does not wait for us.
fn spec_in_queue(request: &QueuedRequest) -> Option<Arc<RequestSpec>> {
    let spec = &request.spec;
    match &request.stage {
        Stage::Taken(_) => None,
        Stage::Held(pool) => Some(Arc::new(RequestSpec {
            held_by: Some(pool.clone()),
            ..RequestSpec::clone(spec)
        })),
        _ if request.state != RequestState::Requested => None,
        Stage::Open => Some(spec.clone()),
        Stage::Declined(by) => {
            let mut spec = RequestSpec::clone(spec);
            spec.declined_by.extend(by.iter().cloned());
            Some(Arc::new(spec))
        }
    }
}

/// Returns the stage after a new record. A record that shows the decision, or that the request is done, ends the
/// stage.
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
