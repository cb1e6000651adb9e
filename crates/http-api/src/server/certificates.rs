//! Reloads certificates while the server runs.
//!
//! Renewal tools write the files one after the other, so they may be inconsistent for a moment. Until they are valid,
//! new connections get the previous certificate. Established connections are not affected.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nodeyard_config::ApiTls;
use nodeyard_tls::TlsError;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;

use super::tls::{self, ApiTlsError};

/// How often the files are checked. Polling follows chains of symbolic links, which some renewal tools replace.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The certificate files and the acceptor last loaded from them.
pub(super) struct CertificateReloader {
    files: ApiTls,
    seen: FileStamps,
    /// The files as last seen are invalid or could not be read.
    invalid: bool,
    current: watch::Sender<TlsAcceptor>,
}

impl CertificateReloader {
    pub(super) async fn open(files: ApiTls) -> Result<Self, ApiTlsError> {
        let reading = spawn_blocking(move || {
            let seen = FileStamps::of(&files);
            tls::acceptor(&files).map(|acceptor| (files, seen, acceptor))
        });
        let (files, seen, acceptor) = reading.await.map_err(|_| ApiTlsError::Stopped)??;
        Ok(Self {
            files,
            seen,
            invalid: false,
            current: watch::Sender::new(acceptor),
        })
    }

    /// Returns the acceptor for new connections.
    pub(super) fn subscribe(&self) -> watch::Receiver<TlsAcceptor> {
        self.current.subscribe()
    }

    /// Checks the files until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.reload_if_changed().await {
                None => {}
                Some(Ok(())) => tracing::info!("reloaded certificates of the API"),
                Some(Err(error)) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "failed to reload certificates of the API; using the previous ones, see `api.tls` in nodepool.yaml"
                ),
            }
        }
    }

    /// Reloads the files if they have changed. Returns None if there is nothing to report.
    async fn reload_if_changed(&mut self) -> Option<Result<(), TlsError>> {
        let (files, seen, invalid) = (self.files.clone(), self.seen, self.invalid);
        let looking = spawn_blocking(move || {
            // Before the files are read, so that later changes are noticed by the next check.
            let stamps = FileStamps::of(&files);
            (invalid || stamps != seen).then(|| (stamps, tls::acceptor(&files)))
        });
        let (stamps, made) = looking.await.ok()??;
        self.seen = stamps;
        self.invalid = made.is_err();
        match made {
            Ok(acceptor) => {
                self.current.send_replace(acceptor);
                Some(Ok(()))
            }
            Err(error) => (stamps != seen).then_some(Err(error)),
        }
    }
}

/// Identifies the version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// None for a file that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamps([Option<FileStamp>; 3]);

impl FileStamps {
    fn of(files: &ApiTls) -> Self {
        let file_stamp = |path: &str| {
            let metadata = Path::new(path).metadata().ok()?;
            Some(FileStamp {
                inode: metadata.ino(),
                size: metadata.size(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })
        };
        let authorities = files.client_ca.as_deref();
        Self([
            file_stamp(&files.cert),
            file_stamp(&files.key),
            authorities.and_then(file_stamp),
        ])
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_testbeds::Certificates;

    use super::*;

    #[tokio::test]
    async fn invalid_files_keep_the_previous_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        let old = Certificates::create(&old).unwrap().server;
        let new = Certificates::create(&new).unwrap().server;
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let files = ApiTls {
            cert: text(&old.cert),
            key: text(&old.key),
            client_ca: None,
        };
        let mut reloader = CertificateReloader::open(files).await.unwrap();
        let mut current = reloader.subscribe();
        assert!(reloader.reload_if_changed().await.is_none());

        std::fs::write(&old.cert, "half of a certif").unwrap();
        assert!(reloader.reload_if_changed().await.unwrap().is_err());
        // It is reported once.
        assert!(reloader.reload_if_changed().await.is_none());
        std::fs::copy(&new.cert, &old.cert).unwrap();
        assert!(reloader.reload_if_changed().await.unwrap().is_err());
        std::fs::remove_file(&old.key).unwrap();
        assert!(reloader.reload_if_changed().await.unwrap().is_err());
        assert!(!current.has_changed().unwrap());

        std::fs::copy(&new.key, &old.key).unwrap();
        reloader.reload_if_changed().await.unwrap().unwrap();
        assert!(current.has_changed().unwrap());
        current.mark_unchanged();
        assert!(reloader.reload_if_changed().await.is_none());
    }
}
