//! Serving HTTP/1.1 to whoever comes: as many connections as there may be, and none that lasts for ever.
//!
//! What all servers of this program have in common. What is said on a connection is theirs.

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

/// Of the lines before a request's body.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// For answers under way when a connection has to end.
const GRACE: Duration = Duration::from_secs(5);
/// After an error that is not the client's, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Gives each connection a task, `most` at a time; more wait to be accepted. After `shutdown` nobody is accepted, and
/// the tasks are waited for.
pub async fn accept<F>(
    listener: &TcpListener,
    most: usize,
    shutdown: &CancellationToken,
    mut task: impl FnMut(TcpStream, SocketAddr) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    loop {
        let (stream, peer, permit) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = next(listener, &permits) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot accept a connection");
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

/// Answers what comes on a connection until it ends, or until `over`; then the answer under way is finished. A head has
/// to come within `patience`, and so has the next one.
pub async fn answer<S, V>(stream: S, service: V, patience: Duration, over: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = over => {
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
