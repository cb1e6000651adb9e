//! The keeper: sees to it that every lease goes on.
//!
//! Of all keepers of a store one works, the others stand by. That only saves work: what a keeper does is safe
//! beside any other, and beside callers who change the same leases.
//!
//! It follows the records of leases, scopes, requests and nodes ([`round`]), and looks at a lease when something
//! that it speaks of has changed, or when its time has come ([`agenda`]).

mod agenda;
mod round;

use std::sync::Arc;
use std::time::Duration;

use nodeyard_store::election::Election;
use nodeyard_store::{self as store, TreePath};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::book::Book;
use crate::error::KeeperError;
use crate::leases::Leases;
use round::Round;

const ELECTION: &str = "/nodeyard/elections/leases";
/// How long a keeper that ends may take to say so to the store.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Options {
    /// By which this keeper is known to those who look.
    pub name: Box<str>,
    /// Between two looks at everything, in case an event was missed.
    pub pass: Duration,
    /// Before something that met an unexpected error of the store is tried again.
    pub retry: Duration,
}

impl Options {
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            pass: Duration::from_secs(60),
            retry: Duration::from_secs(2),
        }
    }
}

/// How others see a running keeper. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Handle {
    working: watch::Receiver<bool>,
}

impl Handle {
    /// True while this keeper is the one that works.
    pub fn is_working(&self) -> bool {
        *self.working.borrow()
    }

    /// Returns when this keeper is the one that works; false if it has ended before.
    pub async fn until_working(&mut self) -> bool {
        self.working.wait_for(|working| *working).await.is_ok()
    }
}

#[derive(Debug)]
pub struct Keeper {
    options: Options,
    book: Arc<Book>,
    working: watch::Sender<bool>,
}

impl Keeper {
    pub fn new(options: Options, leases: &Leases) -> (Self, Handle) {
        let (working, is_working) = watch::channel(false);
        let keeper = Self {
            options,
            book: Arc::clone(&leases.book),
            working,
        };
        let handle = Handle {
            working: is_working,
        };
        (keeper, handle)
    }

    /// Works until `shutdown`, or until the store is closed. The store stays open, and so do the leases. What is
    /// under way is left as it is, and goes on with the next keeper.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), KeeperError> {
        let path = TreePath::new(ELECTION).map_err(store::Error::from)?;
        let locks = self.book.registry.locks();
        let election = Election::new(locks, path, &self.options.name);
        let lead = election.run(|tree| async {
            let _working = Working(&self.working);
            Round::new(&self, tree).run().await
        });
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

/// However the work ends, it has ended then.
struct Working<'a>(&'a watch::Sender<bool>);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}
