//! The work of the keeper that works, until it is dropped or the store is closed.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{NodeId, NodeState, Timestamp};
use nodeyard_store::view::Change;
use nodeyard_store::{Error, Result, Tree};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::agenda::{Agenda, Subject, Suspects};
use super::{Keeper, Options};
use crate::act::Hand;
use crate::book::{self, Book};
use crate::ids::{LeaseId, ScopeId};

/// Leases that are worked on at the same time.
const AT_ONCE: usize = 64;

pub(super) struct Round<'a> {
    book: &'a Arc<Book>,
    options: &'a Options,
    /// Ends with our leadership.
    tree: Arc<dyn Tree>,
    agenda: Agenda,
    tasks: JoinSet<(Subject, Result<Option<Timestamp>>)>,
}

impl<'a> Round<'a> {
    pub(super) fn new(keeper: &'a Keeper, tree: Arc<dyn Tree>) -> Self {
        Self {
            book: &keeper.book,
            options: &keeper.options,
            tree,
            agenda: Agenda::default(),
            tasks: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let mut leases = self.book.leases.changes();
        let mut scopes = self.book.scopes.changes();
        let mut requests = self.book.requests.changes();
        let mut nodes = self.book.nodes.changes();
        self.book.leases.synced().await?;
        self.book.scopes.synced().await?;
        self.book.requests.synced().await?;
        self.book.nodes.synced().await?;
        self.look_at_everything();
        let mut pass = tokio::time::interval(self.options.pass);
        pass.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        pass.tick().await;
        loop {
            self.begin();
            tokio::select! {
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.done(done),
                change = leases.next() => self.leases_changed(change.ok_or(Error::Closed)?),
                change = scopes.next() => self.scopes_changed(change.ok_or(Error::Closed)?),
                change = requests.next() => self.requests_changed(change.ok_or(Error::Closed)?),
                change = nodes.next() => self.nodes_changed(change.ok_or(Error::Closed)?),
                () = sleep(self.book, self.agenda.next_time()) => {}
                _ = pass.tick() => self.look_at_everything(),
            }
            self.agenda.tick(self.book.clock.now());
        }
    }

    fn begin(&mut self) {
        while self.tasks.len() < AT_ONCE
            && let Some((subject, suspects)) = self.agenda.next()
        {
            let (book, tree) = (Arc::clone(self.book), Arc::clone(&self.tree));
            self.tasks.spawn(async move {
                let hand = Hand::new(&book, &tree);
                (subject, look(&hand, subject, suspects).await)
            });
        }
    }

    fn done(&mut self, done: Result<(Subject, Result<Option<Timestamp>>), tokio::task::JoinError>) {
        let Ok((subject, result)) = done else {
            // It has panicked or was aborted; the next look at everything makes up for it.
            return;
        };
        let again = result.unwrap_or_else(|error| {
            if error.is_connection() {
                debug!(?subject, "the store went away while a lease was looked at");
            } else {
                let error = &error as &dyn std::error::Error;
                warn!(?subject, error, "a lease cannot go on; trying again later");
            }
            Some(self.book.clock.now() + self.options.retry.max(Duration::from_secs(1)))
        });
        self.agenda.done(subject, again);
    }

    fn look_at_everything(&mut self) {
        self.leases_changed(Change::Everything);
        self.scopes_changed(Change::Everything);
        self.requests_changed(Change::Everything);
        self.nodes_changed(Change::Everything);
    }

    fn leases_changed(&mut self, change: Change<LeaseId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.leases.get(&id);
                    let lease = item.as_ref().map(|item| &*item.value);
                    self.agenda.lease_changed(id, lease);
                }
            }
            Change::Everything => self.book.leases.for_each(|item| {
                self.agenda.lease_changed(item.id, Some(&item.value));
            }),
        }
    }

    fn scopes_changed(&mut self, change: Change<ScopeId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    self.agenda.scope_changed(id);
                }
            }
            Change::Everything => self.book.scopes.for_each(|item| {
                self.agenda.add(Subject::Scope(item.id));
            }),
        }
    }

    fn requests_changed(&mut self, change: Change<nodeyard_model::RequestId>) {
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.requests.get(&id);
                    let mark = item.and_then(|item| book::lease_of(&item.value));
                    self.agenda.request_changed(id, mark);
                }
            }
            Change::Everything => self.book.requests.for_each(|item| {
                self.agenda
                    .request_changed(item.id, book::lease_of(&item.value));
            }),
        }
    }

    fn nodes_changed(&mut self, change: Change<NodeId>) {
        let mark = |node: &nodeyard_model::Node| {
            let in_use = node.state == NodeState::InUse;
            in_use.then(|| book::marked(node.requestor.as_deref(), &node.user_data))?
        };
        match change {
            Change::Ids(ids) => {
                for id in ids {
                    let item = self.book.nodes.get(&id);
                    let mark = item.and_then(|item| mark(&item.value));
                    self.agenda.node_changed(id, mark);
                }
            }
            Change::Everything => self.book.nodes.for_each(|item| {
                self.agenda.node_changed(item.id, mark(&item.value));
            }),
        }
    }
}

async fn look(hand: &Hand<'_>, subject: Subject, suspects: Suspects) -> Result<Option<Timestamp>> {
    match subject {
        Subject::Lease(id) => {
            if !suspects.requests.is_empty() || !suspects.nodes.is_empty() {
                hand.undo_strays(id, suspects.requests, suspects.nodes)
                    .await?;
            }
            hand.advance(id).await
        }
        Subject::Scope(id) => hand.advance_scope(id).await,
    }
}

/// Until a time, as far as the clock tells.
async fn sleep(book: &Book, until: Option<Timestamp>) {
    match until {
        Some(until) => tokio::time::sleep(until.since(book.clock.now())).await,
        None => std::future::pending().await,
    }
}
