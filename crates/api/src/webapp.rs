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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nodeyard_model::RequestId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::builder;
use crate::metrics::Metrics;
use crate::views::Views;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 256;
/// Of the lines before a request's body.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// After this a connection is closed as soon as its request is answered.
const CONNECTION_AGE: Duration = Duration::from_secs(120);
/// For answers under way when a connection has to end.
const GRACE: Duration = Duration::from_secs(5);
/// After an error that is not the visitor's, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

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
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        let service = TowerToHyperService::new(self.router);
        loop {
            let (stream, permit) = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = accept(&self.listener, &permits) => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            let (service, shutdown) = (service.clone(), shutdown.clone());
            connections.spawn(async move {
                serve(stream, service, shutdown).await;
                drop(permit);
            });
        }
        connections.close();
        connections.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await;
    let permit = permit.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn serve(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    shutdown: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = over(&shutdown) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn std::error::Error, "connection ended");
    }
}

async fn over(shutdown: &CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_AGE) => {}
    }
}
