//! Puts changes of the views into the scheduler.

use std::collections::BTreeSet;

use nodeyard_model::{NodeId, RequestId, RequestState};
use nodeyard_store::view::Change;

use super::{Dispatcher, Timer};

impl Dispatcher {
    pub(super) fn feed_everything(&mut self) {
        self.apply_drains();
        self.pools_changed(Change::Everything);
        self.requests_changed(Change::Everything);
        self.nodes_changed(Change::Everything);
    }

    pub(super) fn nodes_changed(&mut self, change: Change<NodeId>) {
        match change {
            Change::Ids(ids) => ids.into_iter().for_each(|id| self.feed_node(id)),
            Change::Everything => {
                let mut ids: Vec<NodeId> = self.scheduler.node_ids().collect();
                self.ctx.nodes.for_each(|node| ids.push(node.id));
                ids.extend(self.ctx.nodes.empty().into_iter().map(|(id, _)| id));
                ids.extend(self.ctx.nodes.flaws().into_iter().map(|flaw| flaw.id));
                ids.sort_unstable();
                ids.dedup();
                ids.into_iter().for_each(|id| self.feed_node(id));
            }
        }
    }

    fn feed_node(&mut self, id: NodeId) {
        if let Some(node) = self.ctx.nodes.get(&id) {
            self.scheduler.put_node(id, &node.value);
            self.scheduler.set_node_locked(id, node.locked);
        } else if self.ctx.nodes.is_blank(&id) {
            self.scheduler.put_empty_node(id);
        } else if self.ctx.nodes.flaw(&id).is_some() {
            self.scheduler.put_unreadable_node(id);
        } else {
            self.scheduler.remove_node(id);
            self.failed_deletions.remove(&id);
        }
    }

    pub(super) fn requests_changed(&mut self, change: Change<RequestId>) {
        match change {
            Change::Ids(ids) => ids.into_iter().for_each(|id| self.feed_request(id)),
            Change::Everything => {
                let mut ids: BTreeSet<RequestId> = self.scheduler.request_ids().collect();
                self.ctx.requests.for_each(|request| {
                    ids.insert(request.id);
                });
                ids.extend(self.serving.keys().copied());
                ids.extend(self.ctx.history.noted());
                ids.into_iter().for_each(|id| self.feed_request(id));
            }
        }
    }

    pub(super) fn feed_request(&mut self, id: RequestId) {
        let Some(request) = self.ctx.requests.get(&id) else {
            self.scheduler.remove_request(id);
            self.retries.remove(&id);
            self.clouds_asked_for.remove(&id);
            self.recovering.remove(&id);
            self.ready_nodes.forget(id);
            self.ctx.history.gone(id, self.ctx.clock.now());
            if let Some(task) = self.serving.get(&id) {
                task.gone.cancel();
            }
            return;
        };
        let record = &request.value;
        self.ready_nodes.saw(id, record, &request.stat);
        if record.state.is_final() {
            self.retries.remove(&id);
        }
        if record.state != RequestState::Pending {
            self.recovering.remove(&id);
        }
        match record.state {
            RequestState::Failed => self.ctx.history.failed(id, record, self.ctx.clock.now()),
            RequestState::Requested => self.schedule_sample(),
            _ => {}
        }
        self.scheduler.put_request(id, record, self.ctx.clock.now());
    }

    pub(super) fn pools_changed(&mut self, change: Change<String>) {
        let entries = match change {
            Change::Ids(entries) => entries,
            Change::Everything => {
                let mut entries: BTreeSet<String> = self.pool_entries.clone();
                self.ctx.pools.for_each(|pool| {
                    entries.insert(pool.id.clone());
                });
                entries
            }
        };
        for entry in entries {
            match self.ctx.pools.get(&entry) {
                Some(pool) => {
                    self.scheduler.put_pool(&entry, &pool.value);
                    self.pool_entries.insert(entry);
                }
                None => {
                    self.scheduler.remove_pool(&entry);
                    self.pool_entries.remove(&entry);
                    // Its launcher may have died, and left requests behind.
                    self.recover_all_again();
                    // It may have been the last one that had not declined some request.
                    let grace = self.ctx.timing.departure_grace;
                    self.timers.within(grace, Timer::FailDeclined);
                }
            }
        }
    }

    /// Checks all pending requests of others again: their launchers may have died.
    pub(super) fn recover_all_again(&mut self) {
        let recovering = self.recovering.iter();
        let waiting = recovering.filter(|(_, running)| running.is_none());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.recover_again(id);
            self.feed_request(id);
        }
    }

    /// Applies changed drains.
    pub(super) fn drains_changed(&mut self) {
        self.apply_drains();
        self.announce_all();
    }
}
