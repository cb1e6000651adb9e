//! Gearman calls to workers.
//!
//! Each call uses its own client. A job server drops queued jobs of a disconnected client, so an abandoned call is not executed
//! later.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nodeyard_gearman::client::{
    ClientError, JobClient, JobClientOptions, JobEvent, JobOutcome, JobRequest, SubmittedJob,
};
use nodeyard_image::ImageId;
use nodeyard_model::BuildId;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::context::StewardContext;
use super::progress::ProgressReporter;
use super::recovery::{JobResult, ReportedState};
use crate::jobs::{Function, ImageInfo, JobFailure, to_payload};

/// The outcome of a call.
#[derive(Debug)]
pub(super) enum CallOutcome {
    Done(Bytes),
    /// The worker reported a failure.
    Failed(JobFailure),
    /// It is unknown whether the call was executed.
    Lost(String),
    /// The call was not submitted.
    NotSent(String),
}

/// A job that was accepted by a job server.
#[derive(Debug)]
pub(super) struct ServerJob {
    job: SubmittedJob,
    /// The index of the job server.
    server: usize,
}

/// The status of a job that sends no events.
enum JobStatus {
    /// The job is running or queued.
    Running,
    /// The job is finished; its result was lost.
    Finished,
    /// No worker on its job server can run it.
    NoWorker,
    Unknown,
}

impl StewardContext {
    pub(super) async fn submit(
        &self,
        function: &Function,
        payload: &impl Serialize,
    ) -> Result<ServerJob, CallOutcome> {
        let functions = self.directory.refresh().await;
        let server = functions.find_server(function);
        let server = server.and_then(|server| Some((server, self.directory.endpoint(server)?)));
        let Some((server, endpoint)) = server else {
            let no_worker = || format!("no worker has registered {function}");
            let reason = functions.unavailable_reason().unwrap_or_else(no_worker);
            return Err(CallOutcome::NotSent(reason));
        };
        let client = JobClient::new(JobClientOptions::new(vec![endpoint.clone()]));
        let request = JobRequest::new(function.to_string(), to_payload(payload))
            .unique(Uuid::new_v4().simple().to_string());
        match client.submit(&request).await {
            Ok(job) => Ok(ServerJob { job, server }),
            Err(
                error @ (ClientError::OutcomeUnknown { .. }
                | ClientError::UnexpectedResponse { .. }),
            ) => Err(CallOutcome::Lost(error.to_string())),
            Err(error) => Err(CallOutcome::NotSent(error.to_string())),
        }
    }

    /// Makes a short call and waits for its result.
    pub(super) async fn call(
        &self,
        function: &Function,
        payload: &impl Serialize,
        limit: Duration,
    ) -> CallOutcome {
        let job = match self.submit(function, payload).await {
            Ok(placed) => placed.job,
            Err(outcome) => return outcome,
        };
        match tokio::time::timeout(limit, job.wait()).await {
            Ok(outcome) => call_outcome(function, outcome),
            Err(_) => CallOutcome::Lost(format!("{function} timed out after {limit:?}")),
        }
    }

    /// Waits for the end of a long job and reports its progress. If the job sends no events, its worker is queried for the image;
    /// `state` extracts the state of the job from that.
    pub(super) async fn follow<T>(
        &self,
        function: &Function,
        build: BuildId,
        ServerJob { mut job, server }: ServerJob,
        reporter: &mut ProgressReporter<'_>,
        state: impl Fn(ImageInfo) -> ReportedState<T>,
    ) -> CallOutcome {
        let silence_timeout = self.timing.silence_timeout;
        let no_worker_timeout =
            silence_timeout.min(self.timing.status_check_after + self.timing.lost_after);
        let mut data = BytesMut::new();
        let mut last_heard = Instant::now();
        loop {
            let next = async {
                loop {
                    tokio::select! {
                        event = job.next() => break event,
                        () = reporter.write_due() => {}
                    }
                }
            };
            let event = match tokio::time::timeout(self.timing.status_check_after, next).await {
                Ok(event) => event.unwrap_or(JobEvent::ConnectionLost),
                Err(_) => match self.job_status(function, build, server, &state).await {
                    JobStatus::Running => {
                        last_heard = Instant::now();
                        continue;
                    }
                    JobStatus::Finished => JobEvent::ConnectionLost,
                    // Leaves a restarting worker time to return.
                    JobStatus::NoWorker if last_heard.elapsed() < no_worker_timeout => continue,
                    JobStatus::Unknown if last_heard.elapsed() < silence_timeout => continue,
                    JobStatus::NoWorker | JobStatus::Unknown => JobEvent::ConnectionLost,
                },
            };
            last_heard = Instant::now();
            match event {
                JobEvent::Status {
                    numerator,
                    denominator,
                } => reporter.report(numerator, denominator).await,
                JobEvent::Data(part) => data.extend_from_slice(&part),
                JobEvent::Warning(_) => {}
                JobEvent::Complete(last) => {
                    data.extend_from_slice(&last);
                    return CallOutcome::Done(data.freeze());
                }
                JobEvent::Fail => return call_outcome(function, JobOutcome::Fail(data.freeze())),
                JobEvent::Exception(text) => {
                    return call_outcome(function, JobOutcome::Exception(text));
                }
                JobEvent::ConnectionLost => return call_outcome(function, JobOutcome::Unknown),
            }
        }
    }

    /// Queries the status of a job on this job server.
    async fn job_status<T>(
        &self,
        function: &Function,
        build: BuildId,
        server: usize,
        state: impl Fn(ImageInfo) -> ReportedState<T>,
    ) -> JobStatus {
        let state = self.info(build).await.map(state);
        let functions = self.directory.refresh().await;
        let info_function = Function::Info(ImageId::from(build));
        let waits = match state {
            Some(ReportedState::Running) => return JobStatus::Running,
            Some(ReportedState::Ended(JobResult::Done(_))) => return JobStatus::Finished,
            Some(ReportedState::Ended(_)) => false,
            Some(ReportedState::Unknown) => true,
            // A worker that has started the job would have registered this function.
            None => !functions.is_registered(&info_function),
        };
        match (functions.is_registered_on(server, function), waits) {
            (false, _) => JobStatus::NoWorker,
            (true, true) => JobStatus::Running,
            (true, false) => JobStatus::Unknown,
        }
    }
}

fn call_outcome(function: &Function, outcome: JobOutcome) -> CallOutcome {
    match outcome {
        JobOutcome::Complete(data) => CallOutcome::Done(data),
        // A job server also reports a failed job if its worker disconnected. Only a worker sends a reason.
        JobOutcome::Fail(data) => match JobFailure::from_data(&data) {
            Some(failure) => CallOutcome::Failed(failure),
            None => CallOutcome::Lost(format!("{function} failed: its worker gave no reason")),
        },
        JobOutcome::Exception(text) => {
            let text = String::from_utf8_lossy(&text);
            CallOutcome::Lost(format!("{function} ended unexpectedly: {text}"))
        }
        JobOutcome::Unknown => {
            CallOutcome::Lost(format!("connection lost while waiting for {function}"))
        }
    }
}
