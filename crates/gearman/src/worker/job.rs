//! What a handler gets, what it may say while it works, and how it ends.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

/// Log output is passed on in pieces of at most this size, whatever the handler writes at once.
const DATA_CHUNK: usize = 256 << 10;

/// Does the jobs of one function. Any `async fn(Job) -> Result<Bytes, JobError>` is one.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The bytes returned become the job's result.
    async fn run(&self, job: Job) -> Result<Bytes, JobError>;
}

#[async_trait]
impl<F, R> Handler for F
where
    F: Fn(Job) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Bytes, JobError>> + Send + 'static,
{
    async fn run(&self, job: Job) -> Result<Bytes, JobError> {
        self(job).await
    }
}

/// How a job ends that has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// An expected failure: the client gets WORK_FAIL.
    #[error("job failed")]
    Fail,
    /// A surprise: the client gets WORK_EXCEPTION with this text.
    #[error("{0}")]
    Exception(String),
}

/// Why nobody may be waiting for a job's result any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The job server is gone and with it the way to deliver a result. The work itself is still wanted as far as
    /// anybody knows: a handler that keeps its result where a later job finds it should go on.
    ConnectionLost,
    /// The worker is stopping and will not wait long.
    Stopping,
}

/// One job, as its handler sees it.
#[derive(Debug)]
pub struct Job {
    pub(super) handle: Bytes,
    pub(super) function: Arc<str>,
    pub(super) unique: Bytes,
    pub(super) payload: Bytes,
    pub(super) server: Arc<str>,
    pub(super) report: mpsc::Sender<Report>,
    pub(super) interrupt: watch::Receiver<Option<Interrupt>>,
}

/// What a handler tells its connection.
#[derive(Debug)]
pub(super) enum Report {
    Progress(u64, u64),
    Data(Bytes),
    Warning(Bytes),
    Done(Result<Bytes, JobError>),
}

impl Job {
    /// The name the job server gave this job.
    pub fn handle(&self) -> &[u8] {
        &self.handle
    }

    pub fn function(&self) -> &str {
        &self.function
    }

    /// What the client submitted to tell its jobs apart; may be empty.
    pub fn unique(&self) -> &[u8] {
        &self.unique
    }

    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The job server it came from, as host and port.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Tells the client how far the job is. Waits while the connection is slow; does nothing when it is lost.
    pub async fn progress(&self, numerator: u64, denominator: u64) {
        let _ = self
            .report
            .send(Report::Progress(numerator, denominator))
            .await;
    }

    /// Sends a part of the result, or of a log, ahead of the end.
    pub async fn data(&self, data: impl Into<Bytes>) {
        let mut data = data.into();
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(DATA_CHUNK));
            let _ = self.report.send(Report::Data(chunk)).await;
        }
    }

    /// Sends a warning.
    pub async fn warn(&self, text: impl Into<Bytes>) {
        let _ = self.report.send(Report::Warning(text.into())).await;
    }

    /// Whether anything has happened that a handler may want to react to.
    pub fn interruption(&self) -> Option<Interrupt> {
        *self.interrupt.borrow()
    }

    /// Waits until something happens that a handler may want to react to.
    pub async fn interrupted(&self) -> Interrupt {
        let mut interrupt = self.interrupt.clone();
        match interrupt.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(Interrupt::ConnectionLost),
            Err(_) => Interrupt::ConnectionLost,
        }
    }
}

/// The text of a panic, for the client's eyes.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("handler panicked: {}", text.unwrap_or("no message"))
}
