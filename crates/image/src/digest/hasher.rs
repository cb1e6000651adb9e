//! Both digests at once: SHA-256 where the bytes are, MD5 on a thread beside it.
//!
//! MD5 cannot be spread over lanes or cores and has no instruction of its own, so it is the slower one by far; the
//! caller's thread computes the other while it waits for the disk. The thread gets copies, in a few buffers that go
//! round, which costs a few hundredths of the hashing.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use md5::{Digest as _, Md5};
use sha2::Sha256;

use super::{Digests, to_hex};

/// Pieces that may wait for the thread.
const WAITING: usize = 8;
const PIECE: usize = 256 * 1024;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Computes MD5 and SHA-256 of what it is given.
#[derive(Debug)]
pub struct Hasher {
    sha256: Sha256,
    md5: JoinHandle<Md5>,
    pieces: SyncSender<Piece>,
    /// Buffers that the thread is done with.
    spare: Receiver<Vec<u8>>,
}

enum Piece {
    Data(Vec<u8>),
    Zeros(u64),
}

impl Hasher {
    /// Fails if no thread can be had.
    pub fn new() -> io::Result<Self> {
        let (pieces, work) = sync_channel(WAITING);
        let (done, spare) = channel();
        let md5 = std::thread::Builder::new()
            .name("md5".to_owned())
            .spawn(move || {
                let mut md5 = Md5::new();
                for piece in work {
                    match piece {
                        Piece::Data(bytes) => {
                            md5.update(&bytes);
                            // Nobody takes it back when the hasher is finished.
                            let _unused = done.send(bytes);
                        }
                        Piece::Zeros(length) => feed_zeros(&mut md5, length),
                    }
                }
                md5
            })?;
        Ok(Self {
            sha256: Sha256::new(),
            md5,
            pieces,
            spare,
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            let mut buffer = self.spare.try_recv().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(piece);
            self.send(Piece::Data(buffer));
            self.sha256.update(piece);
        }
    }

    /// As many zero bytes.
    pub fn zeros(&mut self, length: u64) {
        self.send(Piece::Zeros(length));
        feed_zeros(&mut self.sha256, length);
    }

    pub fn finish(self) -> io::Result<Digests> {
        drop(self.pieces);
        let md5 = self
            .md5
            .join()
            .map_err(|_| io::Error::other("the thread that computes MD5 ended early"))?;
        Ok(Digests {
            md5: Some(to_hex(&md5.finalize())),
            sha256: Some(to_hex(&self.sha256.finalize())),
        })
    }

    /// A thread that is gone is noticed by `finish`.
    fn send(&self, piece: Piece) {
        let _noticed = self.pieces.send(piece);
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
    fn the_digests_are_those_of_the_bytes() {
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
    fn counted_zeros_are_zeros() {
        let length = ZEROS.len() * 3 + PIECE + 17;
        let mut counted = Hasher::new().unwrap();
        counted.update(b"x");
        counted.zeros(length as u64);
        let mut given = Hasher::new().unwrap();
        given.update(b"x");
        given.update(&vec![0; length]);
        assert_eq!(counted.finish().unwrap(), given.finish().unwrap());
    }
}
