//! Certificates that are replaced while the server runs.
//!
//! Whoever renews a certificate writes its files one after the other, so for a moment they do not fit. Until all of them
//! make a server, new connections get the certificate before; those that there are keep theirs.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nodeyard_config::ApiTls;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;

use super::tls::{self, TlsError};

/// Between two looks at the files. Links to links, as some renew their certificates with, are followed by looking only.
const PAUSE: Duration = Duration::from_secs(2);

/// The files, and what was last made of them.
pub(super) struct Renewal {
    files: ApiTls,
    seen: Stamps,
    /// Those that were seen make no server, or could not be read just then.
    broken: bool,
    current: watch::Sender<TlsAcceptor>,
}

impl Renewal {
    pub(super) async fn begin(files: ApiTls) -> Result<Self, TlsError> {
        let reading = spawn_blocking(move || {
            let seen = Stamps::of(&files);
            tls::acceptor(&files).map(|acceptor| (files, seen, acceptor))
        });
        let (files, seen, acceptor) = reading.await.map_err(|_| TlsError::Stopped)??;
        Ok(Self {
            files,
            seen,
            broken: false,
            current: watch::Sender::new(acceptor),
        })
    }

    /// What new connections get.
    pub(super) fn subscribe(&self) -> watch::Receiver<TlsAcceptor> {
        self.current.subscribe()
    }

    /// Looks after the files until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            match self.look().await {
                None => {}
                Some(Ok(())) => tracing::info!("the API has taken its new certificates"),
                Some(Err(error)) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the API cannot use its new certificates and stays with those before; see `api.tls` in nodepool.yaml"
                ),
            }
        }
    }

    /// Tells what became of the files, if that is news.
    async fn look(&mut self) -> Option<Result<(), TlsError>> {
        let (files, seen, broken) = (self.files.clone(), self.seen, self.broken);
        let looking = spawn_blocking(move || {
            // Before they are read: what changes meanwhile is seen by the next look.
            let stamps = Stamps::of(&files);
            (broken || stamps != seen).then(|| (stamps, tls::acceptor(&files)))
        });
        let (stamps, made) = looking.await.ok()??;
        self.seen = stamps;
        self.broken = made.is_err();
        match made {
            Ok(acceptor) => {
                self.current.send_replace(acceptor);
                Some(Ok(()))
            }
            Err(error) => (stamps != seen).then_some(Err(error)),
        }
    }
}

/// By which a file that was written again is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// None for a file that cannot be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamps([Option<Stamp>; 3]);

impl Stamps {
    fn of(files: &ApiTls) -> Self {
        let stamp = |path: &str| {
            let metadata = Path::new(path).metadata().ok()?;
            Some(Stamp {
                inode: metadata.ino(),
                size: metadata.size(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })
        };
        let authorities = files.client_ca.as_deref();
        Self([
            stamp(&files.cert),
            stamp(&files.key),
            authorities.and_then(stamp),
        ])
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_testbeds::Certificates;

    use super::*;

    #[tokio::test]
    async fn files_that_make_no_server_leave_the_one_before() {
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
        let mut renewal = Renewal::begin(files).await.unwrap();
        let mut current = renewal.subscribe();
        assert!(renewal.look().await.is_none());

        std::fs::write(&old.cert, "half of a certif").unwrap();
        assert!(renewal.look().await.unwrap().is_err());
        // It is said once.
        assert!(renewal.look().await.is_none());
        std::fs::copy(&new.cert, &old.cert).unwrap();
        assert!(renewal.look().await.unwrap().is_err());
        std::fs::remove_file(&old.key).unwrap();
        assert!(renewal.look().await.unwrap().is_err());
        assert!(!current.has_changed().unwrap());

        std::fs::copy(&new.key, &old.key).unwrap();
        renewal.look().await.unwrap().unwrap();
        assert!(current.has_changed().unwrap());
        current.mark_unchanged();
        assert!(renewal.look().await.is_none());
    }
}
