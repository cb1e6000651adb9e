//! What handlers work with.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_api::{Explain, Views};
use nodeyard_config::Config;
use nodeyard_launcher::drain::DrainShape;
use nodeyard_lease::Leases;
use nodeyard_store::registry::Registry;
use nodeyard_store::view::View;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::answer::Result;
use crate::events::Hub;
use crate::problem::Problem;
use crate::routes::components::ComponentShape;

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct App(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) registry: Registry,
    pub(crate) views: Views,
    pub(crate) leases: Leases,
    pub(crate) components: View<ComponentShape>,
    pub(crate) drains: View<DrainShape>,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    pub(crate) explain: Arc<dyn Explain>,
    pub(crate) ready: watch::Receiver<bool>,
    pub(crate) hub: Hub,
    /// One for each event stream there may be.
    pub(crate) streams: Arc<Semaphore>,
    /// Ends the streams.
    pub(crate) shutdown: CancellationToken,
}

impl App {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// What comes within the time; none after it.
    pub(crate) async fn wait<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T> + Send,
    ) -> Result<Option<T>> {
        tokio::select! {
            done = tokio::time::timeout(patience, work) => Ok(done.ok()),
            () = self.shutdown.cancelled() => Err(Problem::unavailable("the server is about to end")),
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
