//! [`JobHandler`] and the [`Job`] it runs: payload, progress reports, interrupts and errors.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

/// The maximum size of one WORK_DATA packet; larger data is split.
const DATA_CHUNK: usize = 256 << 10;

/// Runs the jobs of one function. Implemented by any `async fn(Job) -> Result<Bytes, JobError>`.
#[async_trait]
pub trait JobHandler: Send + Sync + 'static {
    /// Runs the job and returns its result.
    async fn run(&self, job: Job) -> Result<Bytes, JobError>;
}

#[async_trait]
impl<F, R> JobHandler for F
where
    F: Fn(Job) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Bytes, JobError>> + Send + 'static,
{
    async fn run(&self, job: Job) -> Result<Bytes, JobError> {
        self(job).await
    }
}

/// A failure of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// An expected failure: the client receives WORK_FAIL.
    #[error("job failed")]
    Fail,
    /// An unexpected error: the client receives WORK_EXCEPTION with this text.
    #[error("{0}")]
    Exception(String),
}

/// Why a job's result may no longer be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobInterrupt {
    /// The connection to the job server was lost, so the result cannot be delivered. A handler that stores its result
    /// where a later job finds it should continue.
    ConnectionLost,
    /// The worker is stopping and drops handlers after [`JobWorkerOptions::stop_grace`](super::JobWorkerOptions).
    Stopping,
}

/// A job being run by a [`JobHandler`].
#[derive(Debug)]
pub struct Job {
    pub(super) handle: Bytes,
    pub(super) function: Arc<str>,
    pub(super) unique: Bytes,
    pub(super) payload: Bytes,
    pub(super) server: Arc<str>,
    pub(super) updates_tx: mpsc::Sender<JobUpdate>,
    pub(super) interrupt: watch::Receiver<Option<JobInterrupt>>,
}

/// A message from a handler to its connection.
#[derive(Debug)]
pub(super) enum JobUpdate {
    Progress(u64, u64),
    Data(Bytes),
    Warning(Bytes),
    Done(Result<Bytes, JobError>),
}

impl Job {
    /// Returns the job server's handle of this job.
    pub fn handle(&self) -> &[u8] {
        &self.handle
    }

    pub fn function(&self) -> &str {
        &self.function
    }

    /// Returns the client's unique id of the job; may be empty.
    pub fn unique(&self) -> &[u8] {
        &self.unique
    }

    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Returns the job server, as host and port.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Reports progress to the client. Waits while the connection is slow; does nothing when it is lost.
    pub async fn progress(&self, numerator: u64, denominator: u64) {
        let _ = self
            .updates_tx
            .send(JobUpdate::Progress(numerator, denominator))
            .await;
    }

    /// Sends partial data: part of the result or of a log.
    pub async fn data(&self, data: impl Into<Bytes>) {
        let mut data = data.into();
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(DATA_CHUNK));
            let _ = self.updates_tx.send(JobUpdate::Data(chunk)).await;
        }
    }

    /// Sends a warning to the client.
    pub async fn warn(&self, text: impl Into<Bytes>) {
        let _ = self.updates_tx.send(JobUpdate::Warning(text.into())).await;
    }

    /// Returns the reason for which the job was interrupted, if it was.
    pub fn interrupt(&self) -> Option<JobInterrupt> {
        *self.interrupt.borrow()
    }

    /// Waits until the job is interrupted.
    pub async fn interrupted(&self) -> JobInterrupt {
        let mut interrupt = self.interrupt.clone();
        match interrupt.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(JobInterrupt::ConnectionLost),
            Err(_) => JobInterrupt::ConnectionLost,
        }
    }
}

/// Returns the message of a panic, for the client.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("handler panicked: {}", text.unwrap_or("no message"))
}
