//! A file as the streamed body of a call, with the digests of what was sent.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;
use futures_util::stream;
use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};
use tokio::sync::{mpsc, oneshot};

/// The size of one chunk, and how many may wait for the network.
const PIECE: usize = 1 << 20;
const WAITING: usize = 4;

/// Digests of one content, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    pub md5: Box<str>,
    pub sha256: Box<str>,
    pub sha512: Box<str>,
}

impl Digests {
    /// Computes the digests of a file. Blocks.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut hashers = Hashers::default();
        let mut file = File::open(path)?;
        let mut piece = vec![0; PIECE];
        loop {
            let length = file.read(&mut piece)?;
            match piece.get(..length) {
                None | Some([]) => return Ok(hashers.finish()),
                Some(bytes) => hashers.update(bytes),
            }
        }
    }

    /// Returns the digest for an algorithm, by OpenStack's name.
    pub fn get(&self, algorithm: &str) -> Option<&str> {
        match algorithm {
            "md5" => Some(&self.md5),
            "sha256" => Some(&self.sha256),
            "sha512" => Some(&self.sha512),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Hashers {
    md5: Md5,
    sha256: Sha256,
    sha512: Sha512,
}

impl Hashers {
    fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.sha256.update(bytes);
        self.sha512.update(bytes);
    }

    fn finish(self) -> Digests {
        Digests {
            md5: to_hex(&self.md5.finalize()),
            sha256: to_hex(&self.sha256.finalize()),
            sha512: to_hex(&self.sha512.finalize()),
        }
    }
}

fn to_hex(bytes: &[u8]) -> Box<str> {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _infallible = write!(hex, "{byte:02x}");
    }
    hex.into()
}

/// A file that is being sent.
pub(crate) struct Outgoing {
    pub(crate) size: u64,
    pub(crate) body: reqwest::Body,
    /// Sent when everything was read; dropped if the call ends before.
    pub(crate) digests: oneshot::Receiver<Digests>,
}

impl Outgoing {
    /// Calls `progress` with the bytes that the network has taken, and the size of the file.
    pub(crate) fn open(
        path: &Path,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let (pieces, taken) = mpsc::channel(WAITING);
        let (done, digests) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            if let Some(all) = read(file, size, &pieces, &progress) {
                // The call may have been dropped.
                let _ = done.send(all);
            }
        });
        let body = stream::unfold(taken, async |mut taken: mpsc::Receiver<_>| {
            Some((taken.recv().await?, taken))
        });
        Ok(Self {
            size,
            body: reqwest::Body::wrap_stream(body),
            digests,
        })
    }
}

/// Reads exactly `size` bytes, the announced length. Returns None if reading fails or the call ends.
fn read(
    mut file: File,
    size: u64,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
    progress: &impl Fn(u64, u64),
) -> Option<Digests> {
    let mut hashers = Hashers::default();
    let mut sent = 0;
    while sent < size {
        let left = usize::try_from(size - sent).unwrap_or(usize::MAX);
        let mut piece = vec![0; left.min(PIECE)];
        if let Err(error) = file.read_exact(&mut piece) {
            let _ = pieces.blocking_send(Err(error));
            return None;
        }
        hashers.update(&piece);
        sent += piece.len() as u64;
        pieces.blocking_send(Ok(piece.into())).ok()?;
        progress(sent, size);
    }
    Some(hashers.finish())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_sent_is_the_file_and_its_digests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.raw");
        let content: Vec<u8> = (0..3 * PIECE / 2).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&told);
        let outgoing = Outgoing::open(&path, move |sent, all| {
            seen.lock().unwrap().push((sent, all));
        });
        let outgoing = outgoing.unwrap();
        let size = content.len() as u64;
        assert_eq!(outgoing.size, size);
        assert_eq!(received(outgoing.body).await.unwrap(), content);
        let digests = outgoing.digests.await.unwrap();
        assert_eq!(digests, Digests::of(&path).unwrap());
        assert_eq!(*told.lock().unwrap(), [(PIECE as u64, size), (size, size)]);
    }

    async fn received(body: reqwest::Body) -> Result<Bytes, reqwest::Error> {
        Ok(body.collect().await?.to_bytes())
    }

    #[test]
    fn digests_have_the_names_that_services_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let empty = Digests::of(file.path()).unwrap();
        assert_eq!(empty.get("md5"), Some("d41d8cd98f00b204e9800998ecf8427e"));
        assert!(
            empty
                .get("sha256")
                .unwrap()
                .starts_with("e3b0c44298fc1c149afb")
        );
        assert!(
            empty
                .get("sha512")
                .unwrap()
                .starts_with("cf83e1357eefb8bdf154")
        );
        assert_eq!(empty.get("blake2b"), None);
    }

    #[tokio::test]
    async fn a_file_that_shrinks_ends_the_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.raw");
        std::fs::write(&path, vec![1; 8 * PIECE]).unwrap();
        let outgoing = Outgoing::open(&path, |_, _| {}).unwrap();
        std::fs::write(&path, "short").unwrap();
        assert!(received(outgoing.body).await.is_err());
        assert!(outgoing.digests.await.is_err());
    }
}
