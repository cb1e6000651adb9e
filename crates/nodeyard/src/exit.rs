//! Exit codes and error output.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use anstream::eprintln;
use anstyle::{AnsiColor, Style};

use crate::error_codes::code_of;

/// The exit codes that scripts may rely on; the manual pages list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    Success,
    /// The command failed, or the answer is negative.
    Failure,
    /// The command line is invalid.
    Usage,
    /// The command succeeded, but its effect is not complete yet.
    Unfinished,
    /// The exit code of a command that was run.
    Code(u8),
}

pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  failed, or a check failed; the error is on standard error
  2  the command line is wrong
  3  `drain`: work is still in progress; `image prune`, `image leaks`: images remain
`exec`, `git-exec` and `request` end with the code of the command they ran, `request` with 128
and the number of the signal that ended it.";

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        ExitCode::from(match outcome {
            CommandOutcome::Success => 0,
            CommandOutcome::Failure => 1,
            CommandOutcome::Usage => 2,
            CommandOutcome::Unfinished => 3,
            CommandOutcome::Code(code) => code,
        })
    }
}

/// An operation that is refused without being an error: scripts for Nodepool expect a message and exit code 0.
#[derive(Debug)]
pub(crate) struct OperationRefused(pub(crate) String);

impl fmt::Display for OperationRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OperationRefused {}

/// Prints a refusal to standard output, as `nodepool` does.
pub(crate) fn print_refusal(result: anyhow::Result<()>) -> anyhow::Result<CommandOutcome> {
    let Err(error) = result else {
        return Ok(CommandOutcome::Success);
    };
    let refused = error.downcast::<OperationRefused>()?;
    writeln!(io::stdout(), "{refused}")?;
    Ok(CommandOutcome::Success)
}

/// Prints an error with its causes. A closed output (`| head`) is not an error.
pub(crate) fn report(error: &anyhow::Error) -> CommandOutcome {
    if is_broken_pipe(error) {
        return CommandOutcome::Success;
    }
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let code = code_of(&**error).map(|code| format!("[{code}]"));
    eprintln!("{red}error{}:{red:#} {error}", code.unwrap_or_default());
    for cause in error.chain().skip(1) {
        eprintln!("  caused by: {cause}");
    }
    CommandOutcome::Failure
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
    })
}
