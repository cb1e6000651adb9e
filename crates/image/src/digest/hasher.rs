//! Computes SHA-256 on the caller's thread and MD5 on a second one.
//!
//! MD5 is by far the slower one because it can neither be parallelized nor accelerated. Its thread receives copies of
//! the data in a few recycled buffers, which costs a few percent of the hashing time.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use md5::{Digest as _, Md5};
use sha2::Sha256;

use super::{Digests, to_hex};

/// The capacity of the queue to the MD5 thread.
const QUEUE_LEN: usize = 8;
const CHUNK: usize = 256 * 1024;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Computes MD5 and SHA-256 of its input.
#[derive(Debug)]
pub struct Hasher {
    sha256: Sha256,
    md5: JoinHandle<Md5>,
    inputs: SyncSender<HashInput>,
    /// Buffers returned by the thread for reuse.
    spare: Receiver<Vec<u8>>,
}

enum HashInput {
    Data(Vec<u8>),
    Zeros(u64),
}

impl Hasher {
    /// Creates a hasher and its thread.
    pub fn new() -> io::Result<Self> {
        let (inputs, work) = sync_channel(QUEUE_LEN);
        let (done, spare) = channel();
        let md5 = std::thread::Builder::new()
            .name("md5".to_owned())
            .spawn(move || {
                let mut md5 = Md5::new();
                for piece in work {
                    match piece {
                        HashInput::Data(bytes) => {
                            md5.update(&bytes);
                            // Fails once the hasher is finished.
                            let _unused = done.send(bytes);
                        }
                        HashInput::Zeros(length) => feed_zeros(&mut md5, length),
                    }
                }
                md5
            })?;
        Ok(Self {
            sha256: Sha256::new(),
            md5,
            inputs,
            spare,
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(CHUNK) {
            let mut buffer = self.spare.try_recv().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(piece);
            self.send(HashInput::Data(buffer));
            self.sha256.update(piece);
        }
    }

    /// Hashes `length` zero bytes.
    pub(crate) fn zeros(&mut self, length: u64) {
        self.send(HashInput::Zeros(length));
        feed_zeros(&mut self.sha256, length);
    }

    pub fn finish(self) -> io::Result<Digests> {
        drop(self.inputs);
        let md5 = self
            .md5
            .join()
            .map_err(|_| io::Error::other("MD5 thread panicked"))?;
        Ok(Digests {
            md5: Some(to_hex(&md5.finalize())),
            sha256: Some(to_hex(&self.sha256.finalize())),
        })
    }

    /// Sends input to the thread. A panicked thread is reported by `finish`.
    fn send(&self, piece: HashInput) {
        let _ignored = self.inputs.send(piece);
    }
}

fn feed_zeros(digest: &mut impl md5::Digest, mut length: u64) {
    while length > 0 {
        let step = usize::try_from(length).map_or(ZEROS.len(), |length| length.min(ZEROS.len()));
        let (piece, _) = ZEROS.split_at(step);
        digest.update(piece);
        length -= step as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_input() {
        let mut hasher = Hasher::new().unwrap();
        hasher.update(b"a");
        hasher.update(b"");
        hasher.update(b"bc");
        let digests = hasher.finish().unwrap();
        assert_eq!(
            digests.md5.as_deref(),
            Some("900150983cd24fb0d6963f7d28e17f72")
        );
        assert_eq!(
            digests.sha256.as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
    }

    #[test]
    fn zeros_are_hashed_as_zeros() {
        let length = ZEROS.len() * 3 + CHUNK + 17;
        let mut counted = Hasher::new().unwrap();
        counted.update(b"x");
        counted.zeros(length as u64);
        let mut given = Hasher::new().unwrap();
        given.update(b"x");
        given.update(&vec![0; length]);
        assert_eq!(counted.finish().unwrap(), given.finish().unwrap());
    }
}
