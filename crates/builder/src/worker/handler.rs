//! Runs gearman jobs and returns their results.

use std::sync::Weak;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_gearman::worker::{Job, JobError, JobHandler};

use super::task_error::TaskError;
use super::{WorkerContext, build, delete, info, upload, upload_delete};
use crate::jobs::{FailureKind, Function, JobFailure};

/// Handles the jobs of one function.
#[derive(Debug)]
pub(super) struct FunctionHandler {
    /// Weak, because the context owns the registered functions.
    pub(super) context: Weak<WorkerContext>,
    pub(super) function: Function,
}

#[async_trait]
impl JobHandler for FunctionHandler {
    async fn run(&self, job: Job) -> Result<Bytes, JobError> {
        let Some(context) = self.context.upgrade() else {
            return Err(JobError::Fail);
        };
        let answer = match &self.function {
            Function::Build(image) => build::serve(&context, image, &job).await,
            Function::Import(image) => build::serve_import(&context, image, &job).await,
            Function::Upload(id) => upload::serve(&context, id, &job).await,
            Function::Delete(id) => delete::serve(&context, id, &job).await,
            Function::Info(id) => info::serve(&context, id, &job).await,
            Function::Cancel(id) => build::cancel(&context, id).await,
            Function::UploadDelete(provider) => {
                upload_delete::serve(&context, provider, &job).await
            }
        };
        if matches!(
            self.function,
            Function::Build(_) | Function::Import(_) | Function::Delete(_)
        ) {
            context.withheld.note_space_changed();
        }
        match answer {
            Ok(data) => Ok(data.into()),
            Err(TaskError::Failed(failure)) => {
                let failure = JobFailure {
                    reason: context.redactor().mask(&failure.reason),
                    ..failure
                };
                let JobFailure { reason, kind, .. } = &failure;
                tracing::info!(function = %self.function, ?kind, reason, "job failed");
                let is_build = matches!(self.function, Function::Build(_) | Function::Import(_));
                if is_build && *kind == FailureKind::Unable {
                    context.pause_function(&self.function).await;
                }
                job.data(failure.to_line()).await;
                Err(JobError::Fail)
            }
            Err(TaskError::Internal(text)) => {
                let text = context.redactor().mask(&text);
                tracing::error!(function = %self.function, text, "internal error while running job");
                Err(JobError::Exception(text))
            }
        }
    }
}
