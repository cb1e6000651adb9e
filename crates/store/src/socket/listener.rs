//! The socket itself: making it, and taking connections.

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

use super::connection::{self, Broken};
use super::sessions::Sessions;

/// How long to wait after a connection could not be taken, which happens when there are too many files.
const BREATH: Duration = Duration::from_millis(100);

async fn attend(stream: UnixStream, sessions: Arc<Sessions>) {
    match connection::serve(stream, sessions).await {
        Ok(()) => {}
        Err(Broken::Io(error)) => tracing::debug!(%error, "a client of the store went away"),
        Err(broken) => {
            let cause = std::error::Error::source(&broken).map(ToString::to_string);
            tracing::warn!(error = %broken, cause, "closed the connection of a client of the store");
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("another process serves it; use that one, or stop it first")]
    Alive,
    #[error("something that is not a socket has this name; move it away")]
    NotASocket,
    #[error("the path is longer than a socket's may be; choose a state-dir with a shorter one")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A socket that takes its name with it when it goes.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket. Only the user who owns the process can connect; who does so before it is served waits. A
    /// socket that a dead process left is replaced.
    pub async fn bind(path: &Path) -> Result<Self> {
        Self::bound(path).await.map_err(|error| Error::Backend {
            context: format!("cannot serve the store on {}", path.display()),
            source: Box::new(error),
        })
    }

    /// Serves the store until `shutdown` resolves; the sessions of all clients end then.
    pub async fn serve(self, engine: Arc<Embedded>, shutdown: impl Future<Output = ()> + Send) {
        let sessions = Arc::new(Sessions::new(engine));
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
                        connections.spawn(attend(stream, sessions.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection to the store");
                        tokio::time::sleep(BREATH).await;
                    }
                },
            }
        }
        connections.shutdown().await;
    }

    /// The socket is made under another name and gets its own when its rights are set, so nobody else
    /// can connect in between; taking the name replaces a dead socket.
    async fn bound(path: &Path) -> Result<Self, BindError> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket),
            Ok(_) if UnixStream::connect(path).await.is_ok() => return Err(BindError::Alive),
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
                return Err(BindError::TooLong);
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

impl Drop for Socket {
    fn drop(&mut self) {
        // A name that stays is replaced by the next owner.
        let _ = fs::remove_file(&self.path);
    }
}
