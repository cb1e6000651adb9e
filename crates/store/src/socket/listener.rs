//! Creates the socket and accepts connections.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::embedded::Embedded;
use crate::error::{Error, Result};

use super::connection::{self, ConnectionError};
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

#[derive(Debug, thiserror::Error)]
enum SocketBindError {
    #[error("another process is serving it; use or stop that process")]
    Alive,
    #[error("a file that is not a socket has this name; move it away")]
    NotASocket,
    #[error("the path is too long for a socket; choose a shorter state-dir")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A socket that is unlinked when dropped.
#[derive(Debug)]
pub struct StoreSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StoreSocket {
    /// Creates the socket, which only the owner of the process can connect to. Connections wait until it is served. The
    /// socket of a dead process is replaced.
    pub async fn bind(path: &Path) -> Result<Self> {
        Self::bound(path).await.map_err(|error| Error::Backend {
            context: format!("failed to serve the store on {}", path.display()),
            source: Box::new(error),
        })
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
                accepted = self.listener.accept() => match accepted {
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

    /// Creates the socket under a temporary name, sets its permissions, and renames it, which also replaces a dead
    /// socket.
    async fn bound(path: &Path) -> Result<Self, SocketBindError> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketBindError::NotASocket),
            Ok(_) if UnixStream::connect(path).await.is_ok() => return Err(SocketBindError::Alive),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        let bound = match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => UnixListener::bind(&draft),
        };
        let listener = match bound {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(SocketBindError::TooLong);
            }
            bound => bound?,
        };
        fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
        fs::rename(&draft, path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }
}

impl Drop for StoreSocket {
    fn drop(&mut self) {
        // A name that stays is replaced by the next owner.
        let _ = fs::remove_file(&self.path);
    }
}
