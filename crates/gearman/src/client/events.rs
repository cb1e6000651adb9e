//! What a client hears of a job it waits for.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::JobHandle;
use super::connection::Connection;

/// One thing that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// A part of the result, or of a log.
    Data(Bytes),
    Warning(Bytes),
    Status {
        numerator: u64,
        denominator: u64,
    },
    /// The end; the others below are ends too.
    Complete(Bytes),
    Fail,
    Exception(Bytes),
    /// The connection is lost: the job may have been done, be under way, or never have begun.
    Lost,
}

impl JobEvent {
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Complete(_) | Self::Fail | Self::Exception(_) | Self::Lost
        )
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All data of the job, partial data first.
    Complete(Bytes),
    /// With the data that was sent before the failure.
    Fail(Bytes),
    Exception(Bytes),
    /// The connection was lost: the job may have been done, be under way, or never have begun.
    Unknown,
}

/// A foreground job. Its events must be read, or the job dropped: unread events of one job hold up the others
/// that share its connection.
#[derive(Debug)]
pub struct SubmittedJob {
    pub(super) handle: JobHandle,
    pub(super) events: mpsc::Receiver<JobEvent>,
    pub(super) ended: bool,
    /// A connection ends with the last who needs it, and foreground jobs end with their connection.
    pub(super) _connection: Arc<Connection>,
}

impl SubmittedJob {
    pub fn handle(&self) -> &JobHandle {
        &self.handle
    }

    /// The next event; none after the end.
    pub async fn next(&mut self) -> Option<JobEvent> {
        if self.ended {
            return None;
        }
        // The connection drops its side without an end when it is lost.
        let event = self.events.recv().await.unwrap_or(JobEvent::Lost);
        self.ended = event.is_end();
        Some(event)
    }

    /// Waits for the end and gathers the data. Progress and warnings are passed over.
    pub async fn wait(mut self) -> Outcome {
        let mut data = BytesMut::new();
        while let Some(event) = self.next().await {
            match event {
                JobEvent::Data(part) => data.extend_from_slice(&part),
                JobEvent::Complete(last) if data.is_empty() => return Outcome::Complete(last),
                JobEvent::Complete(last) => {
                    data.extend_from_slice(&last);
                    return Outcome::Complete(data.freeze());
                }
                JobEvent::Fail => return Outcome::Fail(data.freeze()),
                JobEvent::Exception(text) => return Outcome::Exception(text),
                JobEvent::Lost => break,
                JobEvent::Warning(_) | JobEvent::Status { .. } => {}
            }
        }
        Outcome::Unknown
    }
}
