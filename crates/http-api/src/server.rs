//! From a port to answers: plain or TLS, with limits on everything a client could take too much of.
//!
//! HTTP/1.1 only. A client that is slow to say what it wants, slow to send a body or slow to read its answer is
//! dropped ([`patient`]), and holds up nobody meanwhile.

mod patient;
mod renew;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use nodeyard_api::server;
use nodeyard_config::Api;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::access::Peer;
use patient::Patient;
use renew::Renewal;

pub use tls::TlsError;

/// Connections at a time; more wait to be accepted. Most of them may be event streams.
pub(crate) const CONNECTIONS: usize = 16_384;
/// Also how long a connection may be idle.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// For a client to take anything of what is written to it.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address} port {port} for the API; see `api` in nodepool.yaml")]
    Listen {
        address: String,
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error("the API cannot use TLS; see `api.tls` in nodepool.yaml")]
    Tls(#[source] TlsError),
}

/// A port, and TLS where it is configured.
pub(crate) struct Listener {
    listener: TcpListener,
    tls: Option<Renewal>,
}

impl Listener {
    pub(crate) async fn bind(api: &Api) -> Result<Self, BindError> {
        let tls = match &api.tls {
            Some(files) => Some(
                Renewal::begin(files.clone())
                    .await
                    .map_err(BindError::Tls)?,
            ),
            None => None,
        };
        raise_file_limit();
        let (address, port) = (&*api.listen_address, api.port.0);
        let listener = TcpListener::bind((address, port)).await;
        let listener = listener.map_err(|source| BindError::Listen {
            address: address.to_owned(),
            port,
            source,
        })?;
        Ok(Self { listener, tls })
    }

    pub(crate) fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `shutdown`, then finishes the answers under way.
    pub(crate) async fn serve(self, router: Router, shutdown: CancellationToken) {
        let Self { listener, tls } = self;
        let router = TowerToHyperService::new(router);
        let current = tls.as_ref().map(Renewal::subscribe);
        let serving = server::accept(&listener, CONNECTIONS, &shutdown, |stream, peer| {
            let service = From {
                peer: Peer(peer.ip()),
                router: router.clone(),
            };
            let tls = current.as_ref().map(|current| current.borrow().clone());
            connect(stream, tls, service, shutdown.clone())
        });
        match tls {
            None => serving.await,
            Some(renewal) => tokio::select! {
                () = serving => {}
                () = renewal.run() => {}
            },
        }
    }
}

/// Each connection is an open file, and the usual limit is far below what we accept. What the administrator has set as
/// the upper limit stays.
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
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
}

async fn connect(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: From,
    shutdown: CancellationToken,
) {
    // Events are small, and somebody waits for each.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "small packets will be late");
    }
    let stream = Patient::new(stream, WRITE_PATIENCE);
    let over = shutdown.cancelled();
    let Some(tls) = tls else {
        return server::answer(stream, service, HEAD_PATIENCE, over).await;
    };
    match tokio::time::timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => server::answer(stream, service, HEAD_PATIENCE, over).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
        Err(_) => tracing::debug!("no TLS in time"),
    }
}

/// Says where each request of a connection comes from.
#[derive(Clone)]
struct From {
    peer: Peer,
    router: TowerToHyperService<Router>,
}

impl Service<Request<Incoming>> for From {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.router.call(request)
    }
}
