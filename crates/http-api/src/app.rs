//! The state that handlers share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_api::{RequestExplainer, StatusViews};
use nodeyard_config::Config;
use nodeyard_lease::Leases;
use nodeyard_operations::drain::DrainShape;
use nodeyard_store::registry::Registry;
use nodeyard_store::view::View;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::events::EventHub;
use crate::problem::ApiProblem;
use crate::response::Result;
use crate::routes::components::ComponentShape;

/// The state that handlers share. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct ApiState(Arc<ApiStateInner>);

#[derive(Debug)]
pub(crate) struct ApiStateInner {
    pub(crate) registry: Registry,
    pub(crate) views: StatusViews,
    pub(crate) leases: Leases,
    pub(crate) components: View<ComponentShape>,
    pub(crate) drains: View<DrainShape>,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    pub(crate) explain: Arc<dyn RequestExplainer>,
    pub(crate) ready: watch::Receiver<bool>,
    pub(crate) hub: EventHub,
    /// One permit for each event stream that may be open.
    pub(crate) streams: Arc<Semaphore>,
    /// Ends the event streams.
    pub(crate) shutdown: CancellationToken,
}

impl ApiState {
    pub(crate) fn new(inner: ApiStateInner) -> Self {
        Self(Arc::new(inner))
    }

    /// Waits for `work` at most for `timeout`; returns None after that.
    pub(crate) async fn wait<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = T> + Send,
    ) -> Result<Option<T>> {
        tokio::select! {
            done = tokio::time::timeout(timeout, work) => Ok(done.ok()),
            () = self.shutdown.cancelled() => Err(ApiProblem::unavailable("the server is shutting down")),
        }
    }

    /// Returns the current configuration.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }
}

impl Deref for ApiState {
    type Target = ApiStateInner;

    fn deref(&self) -> &ApiStateInner {
        &self.0
    }
}
