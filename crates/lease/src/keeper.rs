//! The keeper: reconciles leases and scopes.
//!
//! The keepers of a store elect a leader. That only saves work: several may reconcile the same leases, beside callers
//! who change them.
//!
//! The leader watches leases, scopes, requests and nodes ([`leader`]), and reconciles a lease when a record it refers to
//! has changed ([`index`]), or when it is due. Overdue leases can be renewed for a while after an interruption
//! ([`renewal`]).

mod index;
mod leader;
mod renewal;

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::layout;
use nodeyard_store::election::Election;
use nodeyard_store::{self as store, TreePath};
use tokio_util::sync::CancellationToken;

use crate::context::LeaseContext;
use crate::error::KeeperError;
use crate::leases::Leases;
use leader::Leader;

pub(crate) use index::LeaseKey;

/// How long a keeper that stops may take to withdraw its candidacy.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Options {
    /// The identifier in the election.
    pub name: Box<str>,
    /// The interval at which everything is reconciled, in case an event was missed.
    pub pass: Duration,
    /// How long overdue leases and scopes can still be renewed after an interruption: a start, a loss of the store, a step
    /// of the clock. At most for their own duration.
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
pub struct LeaseKeeper {
    options: Options,
    context: Arc<LeaseContext>,
}

impl LeaseKeeper {
    pub fn new(options: Options, leases: &Leases) -> Self {
        Self {
            options,
            context: Arc::clone(&leases.context),
        }
    }

    /// Runs until `shutdown`, or until the store is closed. Does not close the store. The next keeper continues aborted
    /// work.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), KeeperError> {
        let path = TreePath::new(layout::LEASES_ELECTION).map_err(store::Error::from)?;
        let locks = self.context.registry.locks();
        let election = Election::new(locks, path, &self.options.name);
        let leading = election.run(|tree| Leader::new(&self).run(tree));
        let result = tokio::select! {
            led = leading => led.and_then(|result| result),
            () = shutdown.cancelled() => Ok(()),
        };
        // Without a connection the candidacy ends with the session.
        let _ = tokio::time::timeout(STOP_TIMEOUT, locks.settled()).await;
        match result {
            Err(store::Error::Closed) => Err(KeeperError::StoreClosed),
            result => Ok(result?),
        }
    }
}
