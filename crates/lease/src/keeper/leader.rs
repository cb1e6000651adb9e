//! What the leader does until it is dropped or the store is closed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_model::{NodeId, RequestId};
use nodeyard_store::view::Change;
use nodeyard_store::{Error, Result, Tree, ext};
use tokio_util::sync::CancellationToken;

use super::index::{Index, LeaseKey};
use super::renewal::RenewalWatch;
use super::{LeaseKeeper, Options};
use crate::context::{self, LeaseContext};
use crate::decide::Renewal;
use crate::execute::LeaseWriter;
use crate::ids::{LeaseId, ScopeId};

pub(super) struct Leader<'a> {
    context: &'a Arc<LeaseContext>,
    options: &'a Options,
    index: Index,
    renewal: Arc<Mutex<RenewalWatch>>,
}

impl<'a> Leader<'a> {
    pub(super) fn new(keeper: &'a LeaseKeeper) -> Self {
        let context = &keeper.context;
        let renewal = RenewalWatch::start(context.clock.clone(), context.tree().session());
        Self {
            context,
            options: &keeper.options,
            index: Index::default(),
            renewal: Arc::new(Mutex::new(renewal)),
        }
    }

    /// `tree` ends with the leadership.
    pub(super) async fn run(mut self, tree: Arc<dyn Tree>) -> Result<()> {
        let (context, renewal) = (Arc::clone(self.context), Arc::clone(&self.renewal));
        let window = self.options.renewal_window;
        let reconcile = move |key| {
            let (context, tree, renewal) = (
                Arc::clone(&context),
                Arc::clone(&tree),
                Arc::clone(&renewal),
            );
            async move {
                ext::persist(&*tree, || async {
                    let renewal = Renewal {
                        window,
                        possible_for: possible_for(&renewal),
                    };
                    reconcile_key(&LeaseWriter::new(&context, &tree, renewal), key).await
                })
                .await
            }
        };
        let never = CancellationToken::new();
        let queue = &self.context.queue;
        tokio::select! {
            result = self.follow() => result,
            () = queue.run(&never, reconcile) => Ok(()),
        }
    }

    /// Adds the keys that changes concern to the queue.
    async fn follow(&mut self) -> Result<()> {
        let mut leases = self.context.leases.changes();
        let mut scopes = self.context.scopes.changes();
        let mut requests = self.context.requests.changes();
        let mut nodes = self.context.nodes.changes();
        self.context.leases.synced().await?;
        self.context.scopes.synced().await?;
        self.context.requests.synced().await?;
        self.context.nodes.synced().await?;
        let mut pass = tokio::time::interval(self.options.pass);
        pass.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = leases.next() => self.leases_changed(change.ok_or(Error::Closed)?),
                change = scopes.next() => self.scopes_changed(change.ok_or(Error::Closed)?),
                change = requests.next() => self.requests_changed(change.ok_or(Error::Closed)?),
                change = nodes.next() => self.nodes_changed(change.ok_or(Error::Closed)?),
                _ = pass.tick() => {
                    possible_for(&self.renewal);
                    self.leases_changed(Change::Everything);
                    self.scopes_changed(Change::Everything);
                    self.requests_changed(Change::Everything);
                    self.nodes_changed(Change::Everything);
                }
            }
        }
    }

    fn add(&self, lease: Option<LeaseId>) {
        if let Some(lease) = lease {
            self.context.queue.add(LeaseKey::Lease(lease));
        }
    }

    fn leases_changed(&mut self, change: Change<LeaseId>) {
        let (index, queue) = (&mut self.index, &self.context.queue);
        let mut update = |id, lease: Option<&_>| {
            for key in index.update(id, lease) {
                queue.add(key);
            }
        };
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.context.leases.get(&id);
                    update(id, item.as_ref().map(|item| &*item.value));
                }
            }
            Change::Everything => {
                let leases = &self.context.leases;
                leases.for_each(|item| update(item.id, Some(&item.value)));
            }
        }
    }

    /// Adds changed scopes and their leases.
    fn scopes_changed(&self, change: Change<ScopeId>) {
        let add = |id| self.context.queue.add(LeaseKey::Scope(id));
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    add(id);
                    self.index.of_scope(id).for_each(|id| self.add(Some(id)));
                }
            }
            Change::Everything => self.context.scopes.for_each(|item| add(item.id)),
        }
    }

    /// Adds the leases of changed requests. The mark counts even if its lease was deleted: then the request is deleted.
    fn requests_changed(&self, change: Change<RequestId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.context.requests.get(&id);
                    let mark = item.and_then(|item| context::lease_of_request(&item.value));
                    self.add(mark.or_else(|| self.index.find_by_request(id)));
                }
            }
            Change::Everything => {
                let requests = &self.context.requests;
                requests.for_each(|item| self.add(context::lease_of_request(&item.value)));
            }
        }
    }

    fn nodes_changed(&self, change: Change<NodeId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.context.nodes.get(&id);
                    self.add(item.and_then(|item| context::lease_of_node(&item.value)));
                    self.add(self.index.find_by_node(id));
                }
            }
            Change::Everything => {
                let nodes = &self.context.nodes;
                nodes.for_each(|item| self.add(context::lease_of_node(&item.value)));
            }
        }
    }
}

async fn reconcile_key(writer: &LeaseWriter<'_>, key: LeaseKey) -> Result<Option<Duration>> {
    let next = match key {
        LeaseKey::Lease(id) => writer.advance(id).await?,
        LeaseKey::Scope(id) => writer.advance_scope(id).await?,
    };
    Ok(next.map(|at| at.since(writer.now())))
}

/// Nothing panics while it holds the lock, so poison is ignored.
fn possible_for(renewal: &Mutex<RenewalWatch>) -> Duration {
    let mut renewal = renewal.lock().unwrap_or_else(PoisonError::into_inner);
    renewal.possible_for()
}
