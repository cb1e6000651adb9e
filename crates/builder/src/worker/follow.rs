//! Sends the progress and the log of a build to clients.

use std::future::pending;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nodeyard_gearman::worker::{Job, JobInterrupt};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::source::LogState;

const CHUNK: usize = 64 << 10;

/// The maximum line length; longer lines are sent in parts.
const MAX_LINE: usize = 1 << 20;

/// The log of a running build.
#[derive(Debug, Clone)]
pub(super) struct BuildLog {
    pub(super) path: PathBuf,
    pub(super) state: watch::Receiver<LogState>,
}

impl BuildLog {
    /// Sends the progress of the build until it has ended.
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
        let log_follow = LogFollow {
            state: self.state.clone(),
            until: None,
        };
        send_log(job, &self.path, 0, Some(log_follow)).await;
    }
}

/// Follows a log that is still being written.
#[derive(Debug)]
pub(super) struct LogFollow {
    pub(super) state: watch::Receiver<LogState>,
    /// When to stop following, if not at the end of the log.
    pub(super) until: Option<Instant>,
}

/// Sends a log from an offset, in whole lines. With `log_follow`, continues until the log or its time limit ends. Returns the
/// offset to continue from, if the log has not ended. An unreadable log is treated as empty.
pub(super) async fn send_log(
    job: &Job,
    path: &Path,
    from: u64,
    mut log_follow: Option<LogFollow>,
) -> Option<u64> {
    let mut file = File::open(path).await.ok()?;
    file.seek(SeekFrom::Start(from)).await.ok()?;
    let mut sent = from;
    let mut lines = Vec::new();
    loop {
        let follows = match &mut log_follow {
            Some(log_follow) => !log_follow.state.borrow_and_update().ended,
            None => false,
        };
        loop {
            let read = (&mut file).take(CHUNK as u64).read_to_end(&mut lines).await;
            sent += send_whole_lines(job, &mut lines).await;
            let lost = job.interrupt() == Some(JobInterrupt::ConnectionLost);
            if lost || !matches!(read, Ok(1..)) {
                break;
            }
        }
        let Some(log_follow) = log_follow.as_mut().filter(|_| follows) else {
            break;
        };
        tokio::select! {
            changed = log_follow.state.changed() => if changed.is_err() { break },
            // An incomplete line is sent completely by the next job.
            _ = job.interrupted() => return Some(sent),
            () = deadline(log_follow.until) => return Some(sent),
        }
    }
    if !lines.is_empty() {
        // The failure line that may follow must start on a new line.
        lines.push(b'\n');
        job.data(lines).await;
    }
    None
}

async fn deadline(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
}

/// Sends the complete lines and returns the number of their bytes.
async fn send_whole_lines(job: &Job, lines: &mut Vec<u8>) -> u64 {
    let end = lines
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map(|at| at + 1);
    let end = end.or((lines.len() > MAX_LINE).then_some(lines.len()));
    let Some(end) = end else { return 0 };
    let rest = lines.split_off(end);
    job.data(Bytes::from(std::mem::replace(lines, rest))).await;
    end as u64
}
