//! Calls to workers.
//!
//! Each call has a client of its own: a job server forgets the jobs of a client that is gone, so a call that is
//! given up is not carried out later, when nobody wants it any more.

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

use super::context::Context;
use super::inquiry::{Found, Stand};
use super::progress::Reporter;
use crate::jobs::{Failure, Function, ImageInfo, to_payload};

/// How a call ended.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Bytes),
    /// The worker says that it went wrong.
    Failed(Failure),
    /// Whether it was carried out is not known.
    Lost(String),
    /// It was not carried out: nobody could be asked.
    Unsent(String),
}

/// A job that a server has taken.
#[derive(Debug)]
pub(super) struct Placed {
    job: SubmittedJob,
    /// The place of the server. The job is on this one only, whatever others offer.
    server: usize,
}

/// What can be said of a job that says nothing.
enum Sign {
    /// It is worked on, or will be as soon as a worker is free.
    OfLife,
    /// It has been done, so its answer is lost.
    OfItsEnd,
    /// Nobody on its server could take it.
    OfDesertion,
    None,
}

impl Context {
    pub(super) async fn submit(
        &self,
        function: &Function,
        payload: &impl Serialize,
    ) -> Result<Placed, Answer> {
        let functions = self.directory.fresh().await;
        let server = functions.server_of(function);
        let server = server.and_then(|server| Some((server, self.directory.endpoint(server)?)));
        let Some((server, endpoint)) = server else {
            let nobody = || format!("no worker answers {function}");
            let reason = functions.silence().unwrap_or_else(nobody);
            return Err(Answer::Unsent(reason));
        };
        let client = JobClient::new(JobClientOptions::new(vec![endpoint.clone()]));
        let request = JobRequest::new(function.to_string(), to_payload(payload))
            .unique(Uuid::new_v4().simple().to_string());
        match client.submit(&request).await {
            Ok(job) => Ok(Placed { job, server }),
            Err(
                error @ (ClientError::OutcomeUnknown { .. }
                | ClientError::UnexpectedResponse { .. }),
            ) => Err(Answer::Lost(error.to_string())),
            Err(error) => Err(Answer::Unsent(error.to_string())),
        }
    }

    /// A call that is answered soon.
    pub(super) async fn call(
        &self,
        function: &Function,
        payload: &impl Serialize,
        limit: Duration,
    ) -> Answer {
        let job = match self.submit(function, payload).await {
            Ok(placed) => placed.job,
            Err(answer) => return answer,
        };
        match tokio::time::timeout(limit, job.wait()).await {
            Ok(outcome) => answer(function, outcome),
            Err(_) => Answer::Lost(format!("{function} was not answered within {limit:?}")),
        }
    }

    /// Stays with a long job until its end. While it says nothing, its worker is asked now and then whether it is
    /// still at it; `stand` finds that in what the worker says of the build.
    pub(super) async fn follow<T>(
        &self,
        function: &Function,
        build: BuildId,
        Placed { mut job, server }: Placed,
        reporter: &mut Reporter<'_>,
        stand: impl Fn(ImageInfo) -> Stand<T>,
    ) -> Answer {
        let silence = self.timing.silence;
        let desertion = silence.min(self.timing.quiet + self.timing.patience);
        let mut data = BytesMut::new();
        let mut heard = Instant::now();
        loop {
            let next = async {
                loop {
                    tokio::select! {
                        event = job.next() => break event,
                        () = reporter.write_due() => {}
                    }
                }
            };
            let event = match tokio::time::timeout(self.timing.quiet, next).await {
                Ok(event) => event.unwrap_or(JobEvent::ConnectionLost),
                Err(_) => match self.sign(function, build, server, &stand).await {
                    Sign::OfLife => {
                        heard = Instant::now();
                        continue;
                    }
                    Sign::OfItsEnd => JobEvent::ConnectionLost,
                    // A worker that restarts is back by then.
                    Sign::OfDesertion if heard.elapsed() < desertion => continue,
                    Sign::None if heard.elapsed() < silence => continue,
                    Sign::OfDesertion | Sign::None => JobEvent::ConnectionLost,
                },
            };
            heard = Instant::now();
            match event {
                JobEvent::Status {
                    numerator,
                    denominator,
                } => reporter.report(numerator, denominator).await,
                JobEvent::Data(part) => data.extend_from_slice(&part),
                JobEvent::Warning(_) => {}
                JobEvent::Complete(last) => {
                    data.extend_from_slice(&last);
                    return Answer::Done(data.freeze());
                }
                JobEvent::Fail => return answer(function, JobOutcome::Fail(data.freeze())),
                JobEvent::Exception(text) => return answer(function, JobOutcome::Exception(text)),
                JobEvent::ConnectionLost => return answer(function, JobOutcome::Unknown),
            }
        }
    }

    /// Asks after a job that is on this server.
    async fn sign<T>(
        &self,
        function: &Function,
        build: BuildId,
        server: usize,
        stand: impl Fn(ImageInfo) -> Stand<T>,
    ) -> Sign {
        let stand = self.info(build).await.map(stand);
        let functions = self.directory.fresh().await;
        let begun = Function::Info(ImageId::from(build));
        let waits = match stand {
            Some(Stand::UnderWay) => return Sign::OfLife,
            Some(Stand::Ended(Found::Done(_))) => return Sign::OfItsEnd,
            Some(Stand::Ended(_)) => false,
            Some(Stand::Unknown) => true,
            // Whoever has begun would answer.
            None => !functions.answers(&begun),
        };
        match (functions.answers_on(server, function), waits) {
            (false, _) => Sign::OfDesertion,
            (true, true) => Sign::OfLife,
            (true, false) => Sign::None,
        }
    }
}

fn answer(function: &Function, outcome: JobOutcome) -> Answer {
    match outcome {
        JobOutcome::Complete(data) => Answer::Done(data),
        // A job server says that a job has failed when its worker is gone. Only a worker says why.
        JobOutcome::Fail(data) => match Failure::from_data(&data) {
            Some(failure) => Answer::Failed(failure),
            None => Answer::Lost(format!("{function} failed and its worker did not say why")),
        },
        JobOutcome::Exception(text) => {
            let text = String::from_utf8_lossy(&text);
            Answer::Lost(format!("{function} ended unexpectedly: {text}"))
        }
        JobOutcome::Unknown => Answer::Lost(format!(
            "the connection was lost before {function} was answered"
        )),
    }
}
