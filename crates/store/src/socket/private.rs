//! A unix socket for processes of the same user, also for servers other than the store's.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// An error creating a [`PrivateSocket`].
#[derive(Debug, thiserror::Error)]
pub enum SocketBindError {
    #[error("another process is serving it; use or stop that process")]
    Alive,
    #[error("a file that is not a socket has this name; move it away")]
    NotASocket,
    #[error("the path is too long for a socket; choose a directory with a shorter path")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A listening socket that only processes of the same user can connect to. It is unlinked when dropped.
#[derive(Debug)]
pub struct PrivateSocket {
    pub(super) listener: UnixListener,
    file: SocketFile,
}

/// The name of a socket in the file system, which is removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl PrivateSocket {
    /// Creates the socket under a temporary name, sets its permissions, and renames it, which also replaces the socket of
    /// a dead process.
    pub async fn bind(path: &Path) -> Result<Self, SocketBindError> {
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
            file: SocketFile(path.to_owned()),
        })
    }

    /// Returns the socket, and its name, which is to be kept while the socket is served.
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A name that stays is replaced by the next owner.
        let _ = fs::remove_file(&self.0);
    }
}
