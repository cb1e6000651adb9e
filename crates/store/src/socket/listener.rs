//! Accepts connections to the embedded store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::embedded::Embedded;
use crate::error::{Error, Result};

use super::connection::{self, ConnectionError};
use super::private::PrivateSocket;
use super::sessions::ClientSessions;

/// The delay after a failed accept, typically caused by too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

async fn serve_client(stream: UnixStream, sessions: Arc<ClientSessions>) {
    match connection::serve(stream, sessions).await {
        Ok(()) => {}
        Err(ConnectionError::Io(error)) => {
            tracing::debug!(%error, "store client disconnected");
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(error = %error, cause, "closed connection of a store client");
        }
    }
}

/// The socket of an embedded store. It is unlinked when dropped.
#[derive(Debug)]
pub struct StoreSocket {
    socket: PrivateSocket,
}

impl StoreSocket {
    /// Creates the socket. Connections wait until it is served.
    pub async fn bind(path: &Path) -> Result<Self> {
        match PrivateSocket::bind(path).await {
            Ok(socket) => Ok(Self { socket }),
            Err(error) => Err(Error::Backend {
                context: format!("failed to serve the store on {}", path.display()),
                source: Box::new(error),
            }),
        }
    }

    /// Serves the store until `shutdown` resolves, then ends the sessions of all clients.
    pub async fn serve(self, engine: Arc<Embedded>, shutdown: impl Future<Output = ()> + Send) {
        let sessions = Arc::new(ClientSessions::new(engine));
        let mut connections = JoinSet::new();
        let expiring = sessions.expire();
        tokio::pin!(shutdown, expiring);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = &mut expiring => {}
                Some(_) = connections.join_next() => {}
                accepted = self.socket.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve_client(stream, sessions.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept connection to the store");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
        connections.shutdown().await;
    }
}
