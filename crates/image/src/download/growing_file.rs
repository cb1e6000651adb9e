//! [`GrowingFile`]: a file that is read sequentially while its ranges are being fetched.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ranges::{ByteRange, ByteRangeSet};

/// Tracks the received ranges of a file and wakes its readers.
#[derive(Debug)]
pub(super) struct GrowingFile {
    state: Mutex<GrowingFileState>,
    grown: Condvar,
}

#[derive(Debug)]
struct GrowingFileState {
    done: ByteRangeSet,
    /// `None` while unknown.
    size: Option<u64>,
    aborted: bool,
}

impl GrowingFile {
    pub(super) fn new(done: ByteRangeSet, size: Option<u64>) -> Self {
        Self {
            state: Mutex::new(GrowingFileState {
                done,
                size,
                aborted: false,
            }),
            grown: Condvar::new(),
        }
    }

    pub(super) fn add(&self, span: ByteRange) {
        self.lock().done.add(span);
        self.grown.notify_all();
    }

    /// Sets the final size.
    pub(super) fn set_size(&self, size: u64) {
        self.lock().size = Some(size);
        self.grown.notify_all();
    }

    /// Makes all readers fail.
    pub(super) fn abort(&self) {
        self.lock().aborted = true;
        self.grown.notify_all();
    }

    pub(super) fn done(&self) -> ByteRangeSet {
        self.lock().done.clone()
    }

    pub(super) fn total(&self) -> u64 {
        self.lock().done.total()
    }

    /// Waits for data after `at` and returns the end of the contiguous data, or `at` at the end of the file. Blocks.
    fn wait_beyond(&self, at: u64) -> io::Result<u64> {
        let mut state = self.lock();
        loop {
            if state.aborted {
                return Err(io::Error::other("download aborted"));
            }
            let prefix = state.done.prefix();
            if prefix > at || state.size == Some(at) {
                return Ok(prefix.max(at));
            }
            state = self
                .grown
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, GrowingFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Aborts the readers when dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) Arc<GrowingFile>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the file sequentially while it is being fetched.
#[derive(Debug)]
pub(super) struct GrowingFileReader {
    pub(super) growing_file: Arc<GrowingFile>,
    pub(super) file: Arc<File>,
    pub(super) at: u64,
}

impl Read for GrowingFileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self
            .growing_file
            .wait_beyond(self.at)?
            .saturating_sub(self.at);
        let most = usize::try_from(available)
            .map_or(buffer.len(), |available| available.min(buffer.len()));
        let (buffer, _) = buffer.split_at_mut(most);
        let got = self.file.read_at(buffer, self.at)?;
        if got == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += got as u64;
        Ok(got)
    }
}
