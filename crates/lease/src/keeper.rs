//! The keeper: sees to it that every lease goes on.
//!
//! Of all keepers of a store one works, the others stand by. That only saves work: what a keeper does is safe
//! beside any other, and beside callers who change the same leases.
//!
//! It follows the records of leases, scopes, requests and nodes ([`leader`]), and reconciles a lease when a record that
//! it refers to has changed ([`index`]), or when it is due. Overdue leases can be renewed for a while after their owners
//! could not do so ([`renewal`]).

mod index;
mod leader;
mod renewal;

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::layout;
use nodeyard_store::election::Election;
use nodeyard_store::{self as store, TreePath};
use tokio_util::sync::CancellationToken;

use crate::book::Book;
use crate::error::KeeperError;
use crate::leases::Leases;
use leader::Leader;

pub(crate) use index::LeaseKey;

/// How long a keeper that ends may take to say so to the store.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Options {
    /// By which this keeper is known to those who look.
    pub name: Box<str>,
    /// Between two looks at everything, in case an event was missed.
    pub pass: Duration,
    /// How long leases and scopes that are overdue can be renewed after a start, a loss of the store or a step of the
    /// clock, during which their owners could not do so; for as long as they last, if that is shorter.
    pub renewal_window: Duration,
}

impl Options {
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            pass: Duration::from_secs(60),
            renewal_window: Duration::from_secs(600),
        }
    }
}

#[derive(Debug)]
pub struct Keeper {
    options: Options,
    book: Arc<Book>,
}

impl Keeper {
    pub fn new(options: Options, leases: &Leases) -> Self {
        Self {
            options,
            book: Arc::clone(&leases.book),
        }
    }

    /// Works until `shutdown`, or until the store is closed. The store stays open, and so do the leases. What is
    /// under way is left as it is, and goes on with the next keeper.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), KeeperError> {
        let path = TreePath::new(layout::LEASES_ELECTION).map_err(store::Error::from)?;
        let locks = self.book.registry.locks();
        let election = Election::new(locks, path, &self.options.name);
        let lead = election.run(|tree| Leader::new(&self).run(tree));
        let result = tokio::select! {
            led = lead => led.and_then(|result| result),
            () = shutdown.cancelled() => Ok(()),
        };
        // Without a connection our candidacy goes with the session.
        let _ = tokio::time::timeout(FAREWELL, locks.settled()).await;
        match result {
            Err(store::Error::Closed) => Err(KeeperError::StoreClosed),
            result => Ok(result?),
        }
    }
}
