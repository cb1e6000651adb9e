//! `post-upload-hook`: a program that accepts or rejects an upload.

use std::path::Path;

use nodeyard_model::{ProviderName, with_causes};
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::task_error::TaskError;
use crate::source::process::{Program, run_plain};
use crate::source::{BuildConsole, SourceError};

/// The maximum size of its logged output.
const OUTPUT: usize = 4 << 10;

/// Runs the hook until it ends or `stop` is cancelled. Fails if it rejects the upload.
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
