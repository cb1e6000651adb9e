//! Carries out what was decided.

use nodeyard_model::{LauncherId, NodeId, NodeState, RequestId, RequestState};
use nodeyard_plan::assign::{Decision, DecisionInputs, Retry};
use nodeyard_plan::protocol::{node, request};
use nodeyard_plan::verdict::{Acceptance, NodeStep};
use nodeyard_plan::{PoolKey, RequestVerdict};

use super::{Launcher, node_id};

/// A request that one of our pools is at work on.
pub(super) struct Job {
    acceptance: Acceptance,
    /// The pool when it accepted.
    own: LauncherId,
    /// One place for each label.
    pub(super) nodes: Vec<Option<NodeId>>,
}

impl Launcher {
    pub(crate) fn carry_out_all(&mut self) {
        while self.carry_out_one() {}
    }

    pub(crate) fn carry_out_one(&mut self) -> bool {
        let Some((key, decision)) = self.backlog.pop_front() else {
            return false;
        };
        let Decision {
            request: id,
            verdict,
        } = decision;
        let record = self.requests.get(&id);
        match verdict {
            RequestVerdict::Accept(acceptance) => {
                let own = self.pools[&acceptance.pool].id.clone();
                let held = record.is_some_and(|r| r.state == RequestState::Pending);
                if !held {
                    match request::take(record, &own, self.now) {
                        Ok(record) => self.write_request(id, record),
                        Err(_) => {
                            self.scheduler.release(&key, id);
                            return true;
                        }
                    }
                }
                let nodes = vec![None; acceptance.steps.len()];
                let job = Job {
                    acceptance,
                    own,
                    nodes,
                };
                self.jobs.insert(id, job);
                self.start(id);
            }
            RequestVerdict::Reserve(_) => {
                let own = self.pools[&key].id.clone();
                match request::take(record, &own, self.now) {
                    Ok(record) => self.write_request(id, record),
                    Err(_) => self.scheduler.release(&key, id),
                }
            }
            RequestVerdict::Decline(_) => self.decline(&key, id),
            other => panic!("nothing to do about {other}"),
        }
        true
    }

    fn decline(&mut self, key: &PoolKey, id: RequestId) {
        let own = self.pools[key].id.clone();
        let registered: Vec<LauncherId> = self.scheduler.registered().cloned().collect();
        if let Ok(record) = request::decline(self.requests.get(&id), &own, &registered, self.now) {
            self.write_request(id, record);
        } else {
            self.scheduler.release(key, id);
        }
    }

    /// Gets the nodes of every place that has none.
    fn start(&mut self, id: RequestId) {
        let record = self.requests[&id].clone();
        let job = &self.jobs[&id];
        let (acceptance, own) = (job.acceptance.clone(), job.own.clone());
        let places: Vec<usize> = (0..job.nodes.len())
            .filter(|place| job.nodes[*place].is_none())
            .collect();
        for (place, step) in places.into_iter().zip(&acceptance.steps) {
            let node = match step {
                NodeStep::Reuse { node, .. } => {
                    let record = node::allocate(self.nodes.get(node), id, &record).unwrap();
                    self.write_node(*node, record);
                    *node
                }
                NodeStep::Launch { label, cost } => {
                    let node = node_id(self.next_node);
                    self.next_node += 1;
                    let planned = node::Planned {
                        request: id,
                        record: &record,
                        pool: &acceptance.pool,
                        launcher: &own,
                        label,
                        cost,
                        zone: acceptance.zone.as_ref(),
                    };
                    let planned = node::planned(&planned, self.now);
                    self.write_node(node, planned);
                    assert_eq!(self.scheduler.excess(node), None, "alone, nothing exceeds");
                    self.scheduler.set_node_locked(node, true);
                    let building = node::begin(self.nodes.get(&node), id, self.now).unwrap();
                    self.write_node(node, building);
                    node
                }
            };
            self.jobs.get_mut(&id).unwrap().nodes[place] = Some(node);
        }
        self.complete(id);
    }

    pub(crate) fn building(&self) -> Vec<NodeId> {
        let building = self.nodes.iter();
        let building = building.filter(|(_, node)| node.state == NodeState::Building);
        building.map(|(id, _)| *id).collect()
    }

    pub(crate) fn finish_launch(&mut self, id: NodeId) {
        let request = self.nodes[&id].request().unwrap();
        self.scheduler.record_accepted_launch(request);
        let record = node::launched(self.nodes.get(&id), request, self.now).unwrap();
        self.write_node(id, record);
        self.scheduler.set_node_locked(id, false);
        self.complete(request);
    }

    /// The launch fails; for lack of quota the request may get another node.
    pub(crate) fn fail_launch(&mut self, id: NodeId, quota: bool) {
        let request = self.nodes[&id].request().unwrap();
        if quota {
            self.scheduler.record_quota_refusal(request, self.now);
        }
        let record = node::launch_failed(self.nodes.get(&id), request, quota, self.now).unwrap();
        self.write_node(id, record);
        self.complete(request);
    }

    fn complete(&mut self, id: RequestId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let nodes: Vec<NodeId> = job.nodes.iter().copied().flatten().collect();
        let in_state = |state| nodes.iter().any(|node| self.nodes[node].state == state);
        if in_state(NodeState::Building) {
            return;
        }
        let (failed, aborted) = (in_state(NodeState::Failed), in_state(NodeState::Aborted));
        if failed || !self.requests.contains_key(&id) {
            let job = self.jobs.remove(&id).unwrap();
            self.unassign(id, &nodes);
            self.scheduler.release(&job.acceptance.pool, id);
            if self.requests.contains_key(&id) {
                let own = &job.own;
                let registered: Vec<LauncherId> = self.scheduler.registered().cloned().collect();
                let record = request::decline(self.requests.get(&id), own, &registered, self.now);
                self.write_request(id, record.unwrap());
            }
        } else if aborted {
            self.retry(id);
        } else {
            let job = self.jobs.remove(&id).unwrap();
            let record = &self.requests[&id];
            let given = record.labels.iter().cloned().zip(nodes.iter().copied());
            let record = request::fulfil(Some(record), given.collect(), self.now).unwrap();
            for node in &record.nodes {
                let key = &job.acceptance.pool;
                assert_eq!(self.nodes[node].pool.as_ref(), Some(&key.pool), "I2");
                assert_eq!(
                    self.nodes[node].provider.as_ref(),
                    Some(&key.provider),
                    "I2"
                );
            }
            self.write_request(id, record);
        }
    }

    fn retry(&mut self, id: RequestId) {
        let job = self.jobs.get_mut(&id).unwrap();
        let mut missing = Vec::new();
        for (place, label) in self.requests[&id].labels.iter().enumerate() {
            let node = job.nodes[place].unwrap();
            if self.nodes[&node].state == NodeState::Aborted {
                job.nodes[place] = None;
                missing.push(label.clone());
            }
        }
        let zone = job.acceptance.zone.clone();
        let at = DecisionInputs {
            now: self.now,
            seed: self.seed,
        };
        match self.scheduler.retry(id, &missing, zone.as_ref(), at) {
            Retry::Accept(acceptance) => {
                self.log.push(format!("retry {id} {acceptance}"));
                self.jobs.get_mut(&id).unwrap().acceptance.steps = acceptance.steps;
                self.start(id);
            }
            Retry::Unassign(verdict) => {
                self.log.push(format!("unassign {id} {verdict}"));
                let job = self.jobs.remove(&id).unwrap();
                let nodes: Vec<NodeId> = job.nodes.into_iter().flatten().collect();
                self.unassign(id, &nodes);
            }
            Retry::Requeue => {
                self.log.push(format!("put back {id}"));
                let job = self.jobs.remove(&id).unwrap();
                let nodes: Vec<NodeId> = job.nodes.into_iter().flatten().collect();
                self.unassign(id, &nodes);
                let back = request::requeue(self.requests.get(&id), self.now).unwrap();
                self.write_request(id, back);
                self.scheduler.release(&job.acceptance.pool, id);
            }
        }
    }
}
