//! The server's connections: TCP or TLS, HTTP/1.1, with limits on what a client can use.
//!
//! A client that is slow to send a request or to read a response is disconnected ([`write_timeout`]), and delays no
//! other client.

mod certificates;
mod tls;
mod write_timeout;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use nodeyard_api::server;
use nodeyard_config::ApiConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::access::PeerAddress;
use certificates::CertificateReloader;
use write_timeout::WriteTimeout;

pub use tls::ApiTlsError;

/// The maximum number of connections; more wait to be accepted. Most of them may be event streams.
pub(crate) const CONNECTIONS: usize = 16_384;
/// The timeout for the head of a request, and the time that a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a client to read anything of what is written to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ApiBindError {
    #[error("failed to listen on {address} port {port} for the API; see `api` in nodepool.yaml")]
    Listen {
        address: String,
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to set up TLS for the API; see `api.tls` in nodepool.yaml")]
    Tls(#[source] ApiTlsError),
}

/// A listening port, with TLS if it is configured.
pub(crate) struct ApiListener {
    listener: TcpListener,
    tls: Option<CertificateReloader>,
}

impl ApiListener {
    pub(crate) async fn bind(api: &ApiConfig) -> Result<Self, ApiBindError> {
        let tls = match &api.tls {
            Some(files) => Some(
                CertificateReloader::open(files.clone())
                    .await
                    .map_err(ApiBindError::Tls)?,
            ),
            None => None,
        };
        raise_file_limit();
        let (address, port) = (&*api.listen_address, api.port.0);
        let listener = TcpListener::bind((address, port)).await;
        let listener = listener.map_err(|source| ApiBindError::Listen {
            address: address.to_owned(),
            port,
            source,
        })?;
        Ok(Self { listener, tls })
    }

    pub(crate) fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`, then finishes the requests in progress.
    pub(crate) async fn serve(self, router: Router, shutdown: CancellationToken) {
        let Self { listener, tls } = self;
        let router = TowerToHyperService::new(router);
        let current = tls.as_ref().map(CertificateReloader::subscribe);
        let serving = server::accept(&listener, CONNECTIONS, &shutdown, |stream, peer| {
            let service = PeerService {
                peer: PeerAddress(peer.ip()),
                router: router.clone(),
            };
            let tls = current.as_ref().map(|current| current.borrow().clone());
            connect(stream, tls, service, shutdown.clone())
        });
        match tls {
            None => serving.await,
            Some(reloader) => tokio::select! {
                () = serving => {}
                () = reloader.run() => {}
            },
        }
    }
}

/// Raises the limit of open files, because each connection is an open file and the default limit is far below what
/// the server accepts. The hard limit stays.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(u64::MAX).min(2 * CONNECTIONS as u64);
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "failed to raise the limit of open files");
        }
    }
}

async fn connect(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: PeerService,
    shutdown: CancellationToken,
) {
    // Events are small and should arrive at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to disable Nagle's algorithm");
    }
    let stream = WriteTimeout::new(stream, WRITE_TIMEOUT);
    let close = shutdown.cancelled();
    let Some(tls) = tls else {
        return server::serve_connection(stream, service, HEADER_TIMEOUT, close).await;
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => server::serve_connection(stream, service, HEADER_TIMEOUT, close).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

/// Adds the peer address to each request of a connection.
#[derive(Clone)]
struct PeerService {
    peer: PeerAddress,
    router: TowerToHyperService<Router>,
}

impl Service<Request<Incoming>> for PeerService {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.router.call(request)
    }
}
