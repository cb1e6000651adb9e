//! HTTP/1.1 connection handling with limits on connections, header sizes and time.
//!
//! Shared by all HTTP servers of this program; routing and responses are theirs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The limit for a request's head.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// How long a request in progress may still take when its connection is to close.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after an accept error that is not the client's fault, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Accepts connections and runs `task` for each, at most `max_connections` at a time; others wait to be accepted. After
/// `shutdown` it accepts no more and waits for the tasks.
pub async fn accept<F>(
    listener: &TcpListener,
    max_connections: usize,
    shutdown: &CancellationToken,
    mut task: impl FnMut(TcpStream, SocketAddr) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(max_connections));
    let connections = TaskTracker::new();
    loop {
        let (stream, peer, permit) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = next(listener, &permits) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to accept connection; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let task = task(stream, peer);
        connections.spawn(async move {
            task.await;
            drop(permit);
        });
    }
    connections.close();
    connections.wait().await;
}

async fn next(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await;
    let permit = permit.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

/// Serves HTTP requests on a connection until the client closes it or `close` completes; then it finishes the request
/// in progress. `header_timeout` limits the time until each request's head has arrived.
pub async fn serve_connection<S, V>(
    stream: S,
    service: V,
    header_timeout: Duration,
    close: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = close => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "connection failed"
        );
    }
}
