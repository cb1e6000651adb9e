//! A handle to a running launcher, for queries and drains.

use std::sync::Arc;

use nodeyard_model::{NodeId, RequestId};
use nodeyard_plan::PoolKey;
use nodeyard_plan::explain::{AssignmentExplanation, EndedRequest};
use tokio::sync::{mpsc, oneshot, watch};

use crate::history::History;
use nodeyard_operations::drain::DrainScope;

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub struct LauncherHandle {
    pub(crate) ready: watch::Receiver<bool>,
    pub(crate) queries: mpsc::UnboundedSender<Query>,
    pub(crate) history: Arc<History>,
}

#[derive(Debug)]
pub(crate) enum Query {
    Explain(RequestId, oneshot::Sender<Option<AssignmentExplanation>>),
    Status(oneshot::Sender<LauncherStatus>),
    Drain(
        DrainScope,
        bool,
        oneshot::Sender<nodeyard_store::Result<()>>,
    ),
}

/// What a launcher is doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LauncherStatus {
    pub nodes: usize,
    pub requests: usize,
    /// Requests that are being served here.
    pub serving: Vec<RequestId>,
    /// Nodes that are being cleaned up here.
    pub settling: Vec<NodeId>,
    pub pools: Vec<PoolStatus>,
    /// Providers that did not start, and why.
    pub failed_providers: Vec<(String, String)>,
    pub drains: Vec<DrainStatus>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PoolStatus {
    pub pool: PoolKey,
    /// Some request waits for room, or the provider did not start.
    pub paused: bool,
    pub drained: bool,
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq)]
pub struct DrainStatus {
    pub scope: DrainScope,
    /// Requests of this launcher that are still being served.
    pub serving: usize,
    /// Nodes that are not gone yet.
    pub nodes: usize,
}

impl LauncherHandle {
    /// Returns whether the first full check is done.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Returns a channel that is true from the first full check on.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }

    /// Waits for the first full check. Returns false if the launcher has ended before.
    pub async fn until_ready(&mut self) -> bool {
        self.ready.wait_for(|ready| *ready).await.is_ok()
    }

    /// Explains why a request waits. None if it does not exist, or the launcher has ended.
    pub async fn explain(&self, request: RequestId) -> Option<AssignmentExplanation> {
        self.ask(|answer| Query::Explain(request, answer))
            .await
            .flatten()
    }

    /// What became of a request that this launcher has served, declined or seen waiting, for a while after its
    /// end. Some of it is in the store, too: [`crate::history::read`].
    pub fn ended(&self, request: RequestId) -> Option<Arc<EndedRequest>> {
        self.history.get(request)
    }

    /// Returns the status of the launcher. None if it has ended.
    pub async fn status(&self) -> Option<LauncherStatus> {
        self.ask(Query::Status).await
    }

    /// Stops accepting requests within a scope. Requests in progress are finished; [`LauncherHandle::status`] shows the
    /// remaining ones. A drain is kept in the store until [`LauncherHandle::undrain`].
    pub async fn drain(&self, scope: DrainScope) -> Option<nodeyard_store::Result<()>> {
        self.ask(|answer| Query::Drain(scope, true, answer)).await
    }

    pub async fn undrain(&self, scope: DrainScope) -> Option<nodeyard_store::Result<()>> {
        self.ask(|answer| Query::Drain(scope, false, answer)).await
    }

    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Option<T> {
        let (answer, result) = oneshot::channel();
        self.queries.send(query(answer)).ok()?;
        result.await.ok()
    }
}
