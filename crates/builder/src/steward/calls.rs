//! Calls to workers.
//!
//! Each call has a client of its own: a job server forgets the jobs of a client that is gone, so a call that is
//! given up is not carried out later, when nobody wants it any more.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nodeyard_gearman::client::{
    Client, ClientError, ClientOptions, JobEvent, JobRequest, Outcome, SubmittedJob,
};
use nodeyard_image::ImageId;
use nodeyard_model::BuildId;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::context::Context;
use super::progress::Reporter;
use crate::jobs::{Failure, Function, to_payload};

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

impl Context {
    pub(super) async fn submit(
        &self,
        function: &Function,
        payload: &impl Serialize,
    ) -> Result<SubmittedJob, Answer> {
        let functions = self.directory.fresh().await;
        let server = functions.server_of(function);
        let Some(endpoint) = server.and_then(|server| self.directory.endpoint(server)) else {
            let nobody = || format!("no worker answers {function}");
            let reason = functions.silence().unwrap_or_else(nobody);
            return Err(Answer::Unsent(reason));
        };
        let client = Client::new(ClientOptions::new(vec![endpoint.clone()]));
        let request = JobRequest::new(function.to_string(), to_payload(payload))
            .unique(Uuid::new_v4().simple().to_string());
        client.submit(&request).await.map_err(|error| match error {
            ClientError::OutcomeUnknown { .. } | ClientError::OutOfStep { .. } => {
                Answer::Lost(error.to_string())
            }
            error => Answer::Unsent(error.to_string()),
        })
    }

    /// A call that is answered soon.
    pub(super) async fn call(
        &self,
        function: &Function,
        payload: &impl Serialize,
        limit: Duration,
    ) -> Answer {
        let job = match self.submit(function, payload).await {
            Ok(job) => job,
            Err(answer) => return answer,
        };
        match tokio::time::timeout(limit, job.wait()).await {
            Ok(outcome) => answer(function, outcome),
            Err(_) => Answer::Lost(format!("{function} was not answered within {limit:?}")),
        }
    }

    /// Stays with a long job until its end. While it says nothing, its worker is asked now and then whether it is
    /// still at it.
    pub(super) async fn follow(
        &self,
        function: &Function,
        build: BuildId,
        mut job: SubmittedJob,
        reporter: &mut Reporter<'_>,
    ) -> Answer {
        let mut data = BytesMut::new();
        let mut heard = Instant::now();
        loop {
            let event = match tokio::time::timeout(self.timing.quiet, job.next()).await {
                Ok(event) => event.unwrap_or(JobEvent::Lost),
                Err(_) if self.is_alive(function, build).await => {
                    heard = Instant::now();
                    continue;
                }
                Err(_) if heard.elapsed() < self.timing.silence => continue,
                Err(_) => JobEvent::Lost,
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
                JobEvent::Fail => return answer(function, Outcome::Fail(data.freeze())),
                JobEvent::Exception(text) => return answer(function, Outcome::Exception(text)),
                JobEvent::Lost => return answer(function, Outcome::Unknown),
            }
        }
    }

    /// Whether somebody works on a build or its upload, or will as soon as a worker is free.
    async fn is_alive(&self, function: &Function, build: BuildId) -> bool {
        if self.info(build).await.is_some() {
            return true;
        }
        let functions = self.directory.fresh().await;
        let begun = Function::Info(ImageId::from(build));
        functions.answers(function) && !functions.answers(&begun)
    }
}

fn answer(function: &Function, outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Complete(data) => Answer::Done(data),
        // A job server says that a job has failed when its worker is gone. Only a worker says why.
        Outcome::Fail(data) => match Failure::from_data(&data) {
            Some(failure) => Answer::Failed(failure),
            None => Answer::Lost(format!("{function} failed and its worker did not say why")),
        },
        Outcome::Exception(text) => {
            let text = String::from_utf8_lossy(&text);
            Answer::Lost(format!("{function} ended unexpectedly: {text}"))
        }
        Outcome::Unknown => Answer::Lost(format!(
            "the connection was lost before {function} was answered"
        )),
    }
}
