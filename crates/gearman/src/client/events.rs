//! Events and outcome of a foreground job.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::JobHandle;
use super::connection::ClientConnection;

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// Partial data: part of the result or of a log.
    Data(Bytes),
    Warning(Bytes),
    Status {
        numerator: u64,
        denominator: u64,
    },
    /// Final, as are all variants below.
    Complete(Bytes),
    Fail,
    Exception(Bytes),
    /// The connection was lost: the job may be finished, running or not started.
    ConnectionLost,
}

impl JobEvent {
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Complete(_) | Self::Fail | Self::Exception(_) | Self::ConnectionLost
        )
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// The job succeeded; its partial data and result, concatenated.
    Complete(Bytes),
    /// The job failed; the data sent before the failure.
    Fail(Bytes),
    Exception(Bytes),
    /// The connection was lost: the job may be finished, running or not started.
    Unknown,
}

/// A submitted foreground job. Its events must be read or the job dropped: unread events of one job block all jobs on
/// the same connection.
#[derive(Debug)]
pub struct SubmittedJob {
    pub(super) handle: JobHandle,
    pub(super) events: mpsc::Receiver<JobEvent>,
    pub(super) ended: bool,
    /// Keeps the connection open: the server drops foreground jobs when it closes.
    pub(super) _connection: Arc<ClientConnection>,
}

impl SubmittedJob {
    pub fn handle(&self) -> &JobHandle {
        &self.handle
    }

    /// Waits for the next event. Returns `None` after the final event.
    pub async fn next(&mut self) -> Option<JobEvent> {
        if self.ended {
            return None;
        }
        // A lost connection drops the sender without a final event.
        let event = self.events.recv().await.unwrap_or(JobEvent::ConnectionLost);
        self.ended = event.is_final();
        Some(event)
    }

    /// Waits for the job to end and collects its data. Progress and warnings are ignored.
    pub async fn wait(mut self) -> JobOutcome {
        let mut data = BytesMut::new();
        while let Some(event) = self.next().await {
            match event {
                JobEvent::Data(part) => data.extend_from_slice(&part),
                JobEvent::Complete(last) if data.is_empty() => return JobOutcome::Complete(last),
                JobEvent::Complete(last) => {
                    data.extend_from_slice(&last);
                    return JobOutcome::Complete(data.freeze());
                }
                JobEvent::Fail => return JobOutcome::Fail(data.freeze()),
                JobEvent::Exception(text) => return JobOutcome::Exception(text),
                JobEvent::ConnectionLost => break,
                JobEvent::Warning(_) | JobEvent::Status { .. } => {}
            }
        }
        JobOutcome::Unknown
    }
}
