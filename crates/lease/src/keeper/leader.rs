//! The work of the keeper that leads, until it is dropped or the store is closed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_model::{NodeId, RequestId};
use nodeyard_store::view::Change;
use nodeyard_store::{Error, Result, Tree, ext};
use tokio_util::sync::CancellationToken;

use super::index::{Index, LeaseKey};
use super::renewal::RenewalWatch;
use super::{Keeper, Options};
use crate::act::Hand;
use crate::book::{self, Book};
use crate::decide::Renewal;
use crate::ids::{LeaseId, ScopeId};

pub(super) struct Leader<'a> {
    book: &'a Arc<Book>,
    options: &'a Options,
    index: Index,
    renewal: Arc<Mutex<RenewalWatch>>,
}

impl<'a> Leader<'a> {
    pub(super) fn new(keeper: &'a Keeper) -> Self {
        let book = &keeper.book;
        let renewal = RenewalWatch::start(book.clock.clone(), book.tree().session());
        Self {
            book,
            options: &keeper.options,
            index: Index::default(),
            renewal: Arc::new(Mutex::new(renewal)),
        }
    }

    /// `tree` ends with the leadership.
    pub(super) async fn run(mut self, tree: Arc<dyn Tree>) -> Result<()> {
        let (book, renewal) = (Arc::clone(self.book), Arc::clone(&self.renewal));
        let window = self.options.renewal_window;
        let reconcile = move |key| {
            let (book, tree, renewal) = (Arc::clone(&book), Arc::clone(&tree), Arc::clone(&renewal));
            async move {
                ext::persist(&*tree, || async {
                    let renewal = Renewal {
                        window,
                        possible_for: possible_for(&renewal),
                    };
                    reconcile(&Hand::new(&book, &tree, renewal), key).await
                })
                .await
            }
        };
        let never = CancellationToken::new();
        let queue = &self.book.queue;
        tokio::select! {
            result = self.follow() => result,
            () = queue.run(&never, reconcile) => Ok(()),
        }
    }

    /// Adds what changes to the queue.
    async fn follow(&mut self) -> Result<()> {
        let mut leases = self.book.leases.changes();
        let mut scopes = self.book.scopes.changes();
        let mut requests = self.book.requests.changes();
        let mut nodes = self.book.nodes.changes();
        self.book.leases.synced().await?;
        self.book.scopes.synced().await?;
        self.book.requests.synced().await?;
        self.book.nodes.synced().await?;
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
            self.book.queue.add(LeaseKey::Lease(lease));
        }
    }

    fn leases_changed(&mut self, change: Change<LeaseId>) {
        let (index, queue) = (&mut self.index, &self.book.queue);
        let mut update = |id, lease: Option<&_>| {
            for key in index.update(id, lease) {
                queue.add(key);
            }
        };
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.leases.get(&id);
                    update(id, item.as_ref().map(|item| &*item.value));
                }
            }
            Change::Everything => {
                let leases = &self.book.leases;
                leases.for_each(|item| update(item.id, Some(&item.value)));
            }
        }
    }

    /// A change of a scope concerns its leases, too.
    fn scopes_changed(&self, change: Change<ScopeId>) {
        let add = |id| self.book.queue.add(LeaseKey::Scope(id));
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    add(id);
                    self.index.of_scope(id).for_each(|id| self.add(Some(id)));
                }
            }
            Change::Everything => self.book.scopes.for_each(|item| add(item.id)),
        }
    }

    /// The mark of a lease in a request counts even if that lease is gone: then the request is to be deleted.
    fn requests_changed(&self, change: Change<RequestId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.requests.get(&id);
                    let mark = item.and_then(|item| book::lease_of(&item.value));
                    self.add(mark.or_else(|| self.index.of_request(id)));
                }
            }
            Change::Everything => {
                let requests = &self.book.requests;
                requests.for_each(|item| self.add(book::lease_of(&item.value)));
            }
        }
    }

    fn nodes_changed(&self, change: Change<NodeId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.nodes.get(&id);
                    self.add(item.and_then(|item| book::user_of(&item.value)));
                    self.add(self.index.of_node(id));
                }
            }
            Change::Everything => {
                let nodes = &self.book.nodes;
                nodes.for_each(|item| self.add(book::user_of(&item.value)));
            }
        }
    }
}

async fn reconcile(hand: &Hand<'_>, key: LeaseKey) -> Result<Option<Duration>> {
    let next = match key {
        LeaseKey::Lease(id) => hand.advance(id).await?,
        LeaseKey::Scope(id) => hand.advance_scope(id).await?,
    };
    Ok(next.map(|at| at.since(hand.now())))
}

/// Nothing panics while it holds the lock, so poison is ignored.
fn possible_for(renewal: &Mutex<RenewalWatch>) -> Duration {
    let mut renewal = renewal.lock().unwrap_or_else(PoisonError::into_inner);
    renewal.possible_for()
}
