//! Web pages. The launcher has Nodepool's: what there is, as text for people and as JSON for programs.
//!
//! Plain HTTP without authentication, for reading only; any method is as good as `GET`, and bodies of requests
//! are not read. It faces whoever can reach the port: heads are small, connections are few and do not last,
//! and one page is made at a time, so the worst that a visitor can cost us is one core.

mod accept;
mod cache;
mod lists;
pub(crate) mod pages;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use hyper_util::service::TowerToHyperService;
use nodeyard_model::RequestId;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::builder;
use crate::metrics::Metrics;
use crate::server;
use crate::views::Views;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 256;
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// After this a connection is closed as soon as its request is answered.
const CONNECTION_AGE: Duration = Duration::from_secs(120);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// An address or a name of this host.
    pub address: String,
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: "0.0.0.0".to_owned(),
            port: 8005,
        }
    }
}

/// Knows why a request waits.
#[async_trait]
pub trait Explain: fmt::Debug + Send + Sync {
    /// None if there is no such request.
    async fn explain(&self, request: RequestId) -> Option<Reasons>;
}

/// Why a request waits, in both forms.
#[derive(Debug, Clone)]
pub struct Reasons {
    pub text: String,
    pub json: String,
}

/// What the pages are made from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub views: Views,
    pub metrics: Metrics,
    pub explain: Arc<dyn Explain>,
    /// True once the launcher works; `/ready` says so.
    pub ready: watch::Receiver<bool>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} port {port} for web pages; see {key} in nodepool.yaml")]
pub struct BindError {
    address: String,
    port: u16,
    /// Of the configuration.
    key: &'static str,
    #[source]
    source: std::io::Error,
}

/// A web server that has its port but does not answer yet.
#[derive(Debug)]
pub struct Webapp {
    listener: TcpListener,
    router: Router,
}

impl Webapp {
    pub async fn bind(options: Options, sources: Sources) -> Result<Self, BindError> {
        Self::listen(options, "webapp", pages::router(sources)).await
    }

    /// The pages of a builder.
    pub async fn bind_builder(
        options: Options,
        sources: builder::Sources,
    ) -> Result<Self, BindError> {
        Self::listen(options, "builder-webapp", builder::pages::router(sources)).await
    }

    async fn listen(
        options: Options,
        key: &'static str,
        router: Router,
    ) -> Result<Self, BindError> {
        let Options { address, port } = options;
        match TcpListener::bind((&*address, port)).await {
            Ok(listener) => Ok(Self { listener, router }),
            Err(source) => Err(BindError {
                address,
                port,
                key,
                source,
            }),
        }
    }

    /// Tells the port that the system has chosen for port 0.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `shutdown`, then finishes the answers under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let service = TowerToHyperService::new(self.router);
        server::accept(&self.listener, CONNECTIONS, &shutdown, |stream, _| {
            let (service, shutdown) = (service.clone(), shutdown.clone());
            async move { server::answer(stream, service, HEAD_PATIENCE, over(&shutdown)).await }
        })
        .await;
    }
}

async fn over(shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_AGE) => {}
    }
}
