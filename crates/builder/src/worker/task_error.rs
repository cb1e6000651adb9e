//! Errors of jobs and shared tasks.

use nodeyard_image::{CommitError, ConvertError};
use nodeyard_model::{coded, with_causes};
use tokio::task::JoinError;

use crate::jobs::{FailureKind, InvalidPayload, JobFailure};
use crate::source::SourceError;

/// The error of a job or shared task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TaskError {
    /// A failure that is sent to the caller with WORK_FAIL.
    Failed(JobFailure),
    /// An internal error, sent to the caller as WORK_EXCEPTION with this text.
    Internal(String),
}

impl TaskError {
    pub(super) fn refused(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Refused, reason)
    }

    pub(super) fn unable(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Unable, reason)
    }

    pub(super) fn interrupted(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Interrupted, reason)
    }

    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Failed, reason)
    }

    pub(super) fn missing(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Missing, reason)
    }

    pub(super) fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self::Failed(JobFailure::new(kind, reason))
    }

    /// Converts the error for manifests and later queries. An internal error can be retried by another worker.
    pub(super) fn into_failure(self) -> JobFailure {
        match self {
            Self::Failed(failure) => failure,
            Self::Internal(reason) => JobFailure::new(FailureKind::Unable, reason),
        }
    }
}

impl From<InvalidPayload> for TaskError {
    fn from(error: InvalidPayload) -> Self {
        Self::refused(with_causes(&error))
    }
}

impl From<CommitError> for TaskError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::File(_) => Self::unable(coded(&error)),
            _ => Self::failed(coded(&error)),
        }
    }
}

impl From<nodeyard_image::Error> for TaskError {
    fn from(error: nodeyard_image::Error) -> Self {
        use nodeyard_image::Error as E;
        let kind = match &error {
            E::Unknown { .. } | E::NoFormat { .. } => FailureKind::Missing,
            E::Exists { .. } | E::FilesExist { .. } | E::InvalidBaseName(_) => FailureKind::Refused,
            E::Building { .. } | E::InsufficientSpace(_) | E::File(_) => FailureKind::Unable,
            E::DigestMismatch { .. } => FailureKind::Failed,
        };
        Self::new(kind, coded(&error))
    }
}

impl From<ConvertError> for TaskError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Repository(error) => error.into(),
            ConvertError::Start { .. } => Self::unable(coded(&error)),
            error => Self::failed(coded(&error)),
        }
    }
}

impl From<SourceError> for TaskError {
    fn from(error: SourceError) -> Self {
        let kind = match &error {
            // Another worker may have the program.
            SourceError::Start { .. } => FailureKind::Unable,
            _ => FailureKind::Failed,
        };
        Self::Failed(JobFailure {
            exit_code: error.exit_code(),
            ..JobFailure::new(kind, coded(&error))
        })
    }
}

impl From<JoinError> for TaskError {
    fn from(error: JoinError) -> Self {
        // The panic message is only logged.
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "image work panicked"
        );
        Self::Internal("internal error of the worker: see its log".to_owned())
    }
}

/// Runs blocking work on a separate thread.
pub(super) async fn blocking<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, TaskError>
where
    T: Send + 'static,
    E: Send + 'static,
    TaskError: From<E>,
{
    Ok(tokio::task::spawn_blocking(work).await??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_retryable_failure() {
        let panicked = tokio::spawn(async { panic!("a mistake") }).await;
        let problem = TaskError::from(panicked.unwrap_err());
        assert_eq!(problem.into_failure().kind, FailureKind::Unable);
    }
}
