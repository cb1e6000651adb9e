//! Passes on what a build says: its progress, and its log.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use nodeyard_gearman::worker::{Interrupt, Job};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};
use tokio::sync::watch;

use crate::source::LogState;

const CHUNK: usize = 64 << 10;

/// A longer line is sent in parts.
const LONGEST_LINE: usize = 1 << 20;

/// The log of a build that runs.
#[derive(Debug, Clone)]
pub(super) struct BuildLog {
    pub(super) path: PathBuf,
    pub(super) state: watch::Receiver<LogState>,
}

impl BuildLog {
    /// Sends the progress of a build until it has ended.
    pub(super) async fn send_progress(&self, job: &Job) {
        let mut state = self.state.clone();
        let mut last = None;
        loop {
            let LogState {
                progress, ended, ..
            } = *state.borrow_and_update();
            if progress != last
                && let Some((done, all)) = progress
            {
                job.progress(done, all).await;
                last = progress;
            }
            if ended || state.changed().await.is_err() {
                return;
            }
        }
    }

    /// Sends the log until it has ended.
    pub(super) async fn send(&self, job: &Job) {
        send_log(job, &self.path, 0, Some(self.state.clone())).await;
    }
}

/// Sends a log from a place on, in whole lines; with `growing`, until nothing follows. A log that cannot be read is
/// as good as an empty one.
pub(super) async fn send_log(
    job: &Job,
    path: &Path,
    from: u64,
    mut growing: Option<watch::Receiver<LogState>>,
) {
    let Ok(mut file) = File::open(path).await else {
        return;
    };
    if file.seek(SeekFrom::Start(from)).await.is_err() {
        return;
    }
    let mut lines = Vec::new();
    loop {
        let follows = match &mut growing {
            Some(state) => !state.borrow_and_update().ended,
            None => false,
        };
        loop {
            let read = (&mut file).take(CHUNK as u64).read_to_end(&mut lines).await;
            send_whole_lines(job, &mut lines).await;
            let lost = job.interruption() == Some(Interrupt::ConnectionLost);
            if lost || !matches!(read, Ok(1..)) {
                break;
            }
        }
        let waited = match &mut growing {
            Some(state) if follows => tokio::select! {
                changed = state.changed() => changed.is_ok(),
                _ = job.interrupted() => false,
            },
            _ => false,
        };
        if !waited {
            break;
        }
    }
    if !lines.is_empty() {
        // What comes after it is a line of its own.
        lines.push(b'\n');
        job.data(lines).await;
    }
}

async fn send_whole_lines(job: &Job, lines: &mut Vec<u8>) {
    let end = lines
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map(|at| at + 1);
    let end = end.or((lines.len() > LONGEST_LINE).then_some(lines.len()));
    if let Some(end) = end {
        let rest = lines.split_off(end);
        job.data(Bytes::from(std::mem::replace(lines, rest))).await;
    }
}
