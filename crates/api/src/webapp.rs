//! The web server of launchers and builders: Nodepool's lists as text and JSON, health and metrics.
//!
//! Plain HTTP without authentication, read-only: every method is treated as `GET`, and request bodies are not read. To
//! bound the load that clients cause, heads are small, connections few and short, and one page is rendered at a time.

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
use crate::views::StatusViews;

/// The maximum number of connections; more wait to be accepted.
const CONNECTIONS: usize = 256;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection is closed as soon as its request is answered.
const CONNECTION_AGE: Duration = Duration::from_secs(120);

/// The listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// An address or a host name of this host.
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

/// Explains why a request is waiting.
#[async_trait]
pub trait RequestExplainer: fmt::Debug + Send + Sync {
    /// Returns None if the request does not exist.
    async fn explain(&self, request: RequestId) -> Option<RenderedExplanation>;
}

/// An explanation as text and as JSON.
#[derive(Debug, Clone)]
pub struct RenderedExplanation {
    pub text: String,
    pub json: String,
}

/// What the pages of a launcher render.
#[derive(Debug, Clone)]
pub struct WebappSources {
    pub views: StatusViews,
    pub metrics: Metrics,
    pub explain: Arc<dyn RequestExplainer>,
    /// Whether the launcher has completed its first pass; `/ready` reports it.
    pub ready: watch::Receiver<bool>,
}

#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} port {port} for web pages; see {key} in nodepool.yaml")]
pub struct WebappBindError {
    address: String,
    port: u16,
    /// The key in the configuration.
    key: &'static str,
    #[source]
    source: std::io::Error,
}

/// A web server that listens but does not serve yet.
#[derive(Debug)]
pub struct WebappServer {
    listener: TcpListener,
    router: Router,
}

impl WebappServer {
    /// Opens the port for the pages of a launcher.
    pub async fn bind(options: Options, sources: WebappSources) -> Result<Self, WebappBindError> {
        Self::listen(options, "webapp", pages::router(sources)).await
    }

    /// Opens the port for the pages of a builder.
    pub async fn bind_builder(
        options: Options,
        sources: builder::BuilderPageSources,
    ) -> Result<Self, WebappBindError> {
        Self::listen(options, "builder-webapp", builder::pages::router(sources)).await
    }

    async fn listen(
        options: Options,
        key: &'static str,
        router: Router,
    ) -> Result<Self, WebappBindError> {
        let Options { address, port } = options;
        match TcpListener::bind((&*address, port)).await {
            Ok(listener) => Ok(Self { listener, router }),
            Err(source) => Err(WebappBindError {
                address,
                port,
                key,
                source,
            }),
        }
    }

    /// Returns the bound address, with the port that the system chose for port 0.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`, then finishes the requests in progress.
    pub async fn run(self, shutdown: CancellationToken) {
        let service = TowerToHyperService::new(self.router);
        server::accept(&self.listener, CONNECTIONS, &shutdown, |stream, _| {
            let (service, shutdown) = (service.clone(), shutdown.clone());
            async move {
                server::serve_connection(stream, service, HEADER_TIMEOUT, close(&shutdown)).await;
            }
        })
        .await;
    }
}

async fn close(shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_AGE) => {}
    }
}
