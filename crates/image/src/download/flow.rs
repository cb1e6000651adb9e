//! The file between those who fetch its pieces and those who read it from its beginning.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ranges::{Ranges, Span};

/// What has come, and whether more will.
#[derive(Debug)]
pub(super) struct Flow {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Debug)]
struct State {
    done: Ranges,
    /// None as long as nobody knows.
    size: Option<u64>,
    abandoned: bool,
}

impl Flow {
    pub(super) fn new(done: Ranges, size: Option<u64>) -> Self {
        Self {
            state: Mutex::new(State {
                done,
                size,
                abandoned: false,
            }),
            grown: Condvar::new(),
        }
    }

    pub(super) fn add(&self, span: Span) {
        self.lock().done.add(span);
        self.grown.notify_all();
    }

    /// Nothing follows what has come.
    pub(super) fn end_at(&self, size: u64) {
        self.lock().size = Some(size);
        self.grown.notify_all();
    }

    /// Nothing more comes, and what is there is of no use to readers.
    pub(super) fn abandon(&self) {
        self.lock().abandoned = true;
        self.grown.notify_all();
    }

    pub(super) fn done(&self) -> Ranges {
        self.lock().done.clone()
    }

    pub(super) fn total(&self) -> u64 {
        self.lock().done.total()
    }

    /// Waits until there are bytes behind `at`, and says how far they reach; the same place at the end. Blocks.
    fn beyond(&self, at: u64) -> io::Result<u64> {
        let mut state = self.lock();
        loop {
            if state.abandoned {
                return Err(io::Error::other("the download was given up"));
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the readers go, however the download ends.
#[derive(Debug)]
pub(super) struct Abandon(pub(super) Arc<Flow>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Reads the file from its beginning while it is fetched.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) flow: Arc<Flow>,
    pub(super) file: Arc<File>,
    pub(super) at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let there = self.flow.beyond(self.at)?.saturating_sub(self.at);
        let most = usize::try_from(there).map_or(buffer.len(), |there| there.min(buffer.len()));
        let (buffer, _) = buffer.split_at_mut(most);
        let got = self.file.read_at(buffer, self.at)?;
        if got == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += got as u64;
        Ok(got)
    }
}
