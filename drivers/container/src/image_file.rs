//! A root file system archive on its way from the disk into the runtime.
//!
//! A thread reads ahead by a few pieces and waits when the runtime does not keep up. It holds the last piece back
//! until the digests are known to be right: without it the archive is incomplete, and the runtime keeps nothing of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame};
use md5::Md5;
use nodeyard_driver::{Error, UploadOrder};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

const PIECE: usize = 256 << 10;
const PIECES_AHEAD: usize = 4;

/// Formats that runtimes import: they unpack by themselves.
const FORMATS: &[&str] = &[
    "tar", "tar.gz", "tgz", "tar.xz", "txz", "tar.bz2", "tbz2", "tar.zst", "tzst",
];

pub(crate) fn check_format(format: &str) -> Result<(), Error> {
    if FORMATS.contains(&format) {
        return Ok(());
    }
    let known = FORMATS.join(", ");
    Err(Error::permanent(format!(
        "containers are made from root file system archives, not from {format}: have the image built as one of {known}"
    )))
}

/// What was found wrong with the file while it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verdict(Arc<Mutex<Option<Flaw>>>);

#[derive(Debug)]
enum Flaw {
    Unreadable(PathBuf, io::Error),
    Digest { file: PathBuf, kind: &'static str },
}

impl Verdict {
    fn give(&self, flaw: Flaw) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(flaw);
    }

    /// The error that explains why the call failed, if the file is to blame.
    pub(crate) fn take(&self) -> Option<Error> {
        let flaw = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match flaw? {
            Flaw::Unreadable(file, cause) => {
                let text = format!("image file {} cannot be read", file.display());
                Error::permanent(text).because(cause)
            }
            Flaw::Digest { file, kind } => Error::permanent(format!(
                "image file {} is not what was built: its {kind} is another one; build the image again",
                file.display()
            )),
        })
    }
}

/// The file as the body of a call.
pub(crate) fn body(order: &UploadOrder) -> (BoxBody<Bytes, io::Error>, Verdict) {
    let verdict = Verdict::default();
    let (pieces, receiver) = mpsc::channel(PIECES_AHEAD);
    let mut reader = Reader {
        path: order.file.clone(),
        sha256: order
            .sha256
            .clone()
            .map(|expected| (Sha256::new(), expected)),
        md5: order.md5.clone().map(|expected| (Md5::new(), expected)),
        pieces,
    };
    let flaws = verdict.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(flaw) = reader.run() {
            flaws.give(flaw);
            // Whoever reads the body must not take its end for the end of the file.
            let _gone = reader
                .pieces
                .blocking_send(Err(io::Error::other("the image file is unusable")));
        }
    });
    (Pieces(receiver).boxed(), verdict)
}

struct Reader {
    path: PathBuf,
    sha256: Option<(Sha256, Box<str>)>,
    md5: Option<(Md5, Box<str>)>,
    pieces: mpsc::Sender<io::Result<Bytes>>,
}

impl Reader {
    fn run(&mut self) -> Result<(), Flaw> {
        let unreadable = |cause| Flaw::Unreadable(self.path.clone(), cause);
        let mut file = File::open(&self.path).map_err(unreadable)?;
        let mut held = None;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = (&mut file).take(PIECE as u64).read_to_end(&mut piece);
            if read.map_err(|cause| Flaw::Unreadable(self.path.clone(), cause))? == 0 {
                break;
            }
            if let Some((digest, _)) = &mut self.sha256 {
                digest.update(&piece);
            }
            if let Some((digest, _)) = &mut self.md5 {
                digest.update(&piece);
            }
            if let Some(piece) = held.replace(Bytes::from(piece))
                && self.pieces.blocking_send(Ok(piece)).is_err()
            {
                // The call is over.
                return Ok(());
            }
        }
        self.check()?;
        if let Some(piece) = held {
            let _gone = self.pieces.blocking_send(Ok(piece));
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Flaw> {
        let wrong = |kind| Flaw::Digest {
            file: self.path.clone(),
            kind,
        };
        if let Some((digest, expected)) = self.sha256.take()
            && !is_hex_of(&digest.finalize(), &expected)
        {
            return Err(wrong("sha256"));
        }
        if let Some((digest, expected)) = self.md5.take()
            && !is_hex_of(&digest.finalize(), &expected)
        {
            return Err(wrong("md5"));
        }
        Ok(())
    }
}

fn is_hex_of(digest: &[u8], expected: &str) -> bool {
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.eq_ignore_ascii_case(expected.trim())
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
