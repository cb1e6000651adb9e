//! `post-upload-hook`: a program that looks at an upload and has a veto.

use std::path::Path;

use nodeyard_model::{ProviderName, with_causes};
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::task_error::TaskError;
use crate::source::process::{Program, run_plain};
use crate::source::{BuildConsole, SourceError};

/// How much of its output is logged.
const OUTPUT: usize = 4 << 10;

/// Runs until the hook agrees or does not, or `stop`.
pub(super) async fn run(
    context: &WorkerContext,
    hook: &str,
    provider: &ProviderName,
    external_id: &str,
    file: &Path,
    stop: &CancellationToken,
) -> Result<(), TaskError> {
    let mut program = Program::named(hook);
    program.arg(provider.as_str()).arg(external_id).arg(file);
    let mut console = BuildConsole::in_memory(OUTPUT, context.redactor());
    let ended = run_plain(program, &mut console, stop).await;
    let output = console.into_text();
    match ended {
        Ok(()) => {
            tracing::info!(%provider, external_id, output, "post-upload hook accepted the upload");
            Ok(())
        }
        Err(SourceError::Stopped | SourceError::StillRuns { .. }) => {
            Err(TaskError::failed("the post-upload hook was stopped"))
        }
        Err(error) => {
            tracing::warn!(%provider, external_id, output, "post-upload hook rejected the upload");
            let error = with_causes(&error);
            Err(TaskError::failed(format!(
                "the post-upload hook rejected the upload: {error}"
            )))
        }
    }
}
