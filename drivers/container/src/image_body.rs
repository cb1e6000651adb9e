//! The body of an import: a root file system archive, streamed from disk.
//!
//! A thread reads a few chunks ahead. It sends the last chunk after the digests were verified: without it the archive is
//! incomplete, and the runtime discards it.

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
use nodeyard_driver::{Error, Progress, UploadOrder};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

const CHUNK: usize = 256 << 10;
const CHUNKS_AHEAD: usize = 4;

/// Formats that runtimes import and unpack.
const FORMATS: &[&str] = &[
    "tar", "tar.gz", "tgz", "tar.xz", "txz", "tar.bz2", "tbz2", "tar.zst", "tzst",
];

pub(crate) fn check_format(format: &str) -> Result<(), Error> {
    if FORMATS.contains(&format) {
        return Ok(());
    }
    let known = FORMATS.join(", ");
    Err(Error::permanent(format!(
        "containers are created from root file system archives, not from {format}; build the image as one of {known}"
    )))
}

/// The defect that was found while the file was read, if any.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileDefect(Arc<Mutex<Option<DefectKind>>>);

#[derive(Debug)]
enum DefectKind {
    Unreadable(PathBuf, io::Error),
    Digest { file: PathBuf, kind: &'static str },
}

impl FileDefect {
    fn set(&self, kind: DefectKind) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// Returns the error of the import if the file caused it.
    pub(crate) fn take(&self) -> Option<Error> {
        let kind = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match kind? {
            DefectKind::Unreadable(file, cause) => {
                let text = format!("failed to read image file {}", file.display());
                Error::permanent(text).because(cause)
            }
            DefectKind::Digest { file, kind } => Error::permanent(format!(
                "image file {} differs from what was built: wrong {kind}; build the image again",
                file.display()
            )),
        })
    }
}

/// Returns the body, and the place where a defect of the file is reported.
pub(crate) fn body(
    order: &UploadOrder,
    progress: &Progress,
) -> (BoxBody<Bytes, io::Error>, FileDefect) {
    let defect = FileDefect::default();
    let (chunks, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let mut reader = FileReader {
        path: order.file.clone(),
        sha256: order
            .sha256
            .clone()
            .map(|expected| (Sha256::new(), expected)),
        md5: order.md5.clone().map(|expected| (Md5::new(), expected)),
        chunks,
        progress: progress.clone(),
    };
    let found = defect.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(kind) = reader.run() {
            found.set(kind);
            // The end of the body must not look like the end of the file.
            let _closed = reader
                .chunks
                .blocking_send(Err(io::Error::other("the image file is defective")));
        }
    });
    (Chunks(receiver).boxed(), defect)
}

struct FileReader {
    path: PathBuf,
    sha256: Option<(Sha256, Box<str>)>,
    md5: Option<(Md5, Box<str>)>,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    progress: Progress,
}

impl FileReader {
    fn run(&mut self) -> Result<(), DefectKind> {
        let unreadable = |cause| DefectKind::Unreadable(self.path.clone(), cause);
        let mut file = File::open(&self.path).map_err(unreadable)?;
        let total = file.metadata().map_err(unreadable)?.len();
        let (mut held, mut sent) = (None, 0);
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            let read = (&mut file).take(CHUNK as u64).read_to_end(&mut chunk);
            if read.map_err(|cause| DefectKind::Unreadable(self.path.clone(), cause))? == 0 {
                break;
            }
            if let Some((digest, _)) = &mut self.sha256 {
                digest.update(&chunk);
            }
            if let Some((digest, _)) = &mut self.md5 {
                digest.update(&chunk);
            }
            if let Some(chunk) = held.replace(Bytes::from(chunk)) {
                sent += chunk.len() as u64;
                if self.chunks.blocking_send(Ok(chunk)).is_err() {
                    // The call has ended.
                    return Ok(());
                }
                self.progress.set_bytes(sent, total);
            }
        }
        self.check()?;
        self.progress.set_bytes(total, total);
        if let Some(chunk) = held {
            let _closed = self.chunks.blocking_send(Ok(chunk));
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), DefectKind> {
        let wrong = |kind| DefectKind::Digest {
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

struct Chunks(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let chunk = self.0.poll_recv(context);
        chunk.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
