//! How a program ends: its exit codes, and how an error is shown.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use anstream::eprintln;
use anstyle::{AnsiColor, Style};

use crate::error_codes::code_of;

/// The codes that scripts may rely on; the manual pages list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// What was asked for is not so, or could not be done.
    Failure,
    /// The command line makes no sense.
    Usage,
    /// It was done, but what follows from it is not complete yet.
    Unfinished,
    /// That of a command that was run.
    Code(u8),
}

pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  it could not be done, or a check failed; the reason is on standard error
  2  the command line is wrong
  3  `drain`: something is still under way; `image prune`, `image leaks`: something is still there
`exec`, `git-exec` and `request` end with the code of the command they ran, `request` with 128
and the number of the signal that ended it.";

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        ExitCode::from(match outcome {
            Outcome::Success => 0,
            Outcome::Failure => 1,
            Outcome::Usage => 2,
            Outcome::Unfinished => 3,
            Outcome::Code(code) => code,
        })
    }
}

/// Something that is not there, or not to be done now. Nodepool's scripts see a remark and no failure.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// As `nodepool` takes it: a remark on standard output.
pub(crate) fn remark(result: anyhow::Result<()>) -> anyhow::Result<Outcome> {
    let Err(error) = result else {
        return Ok(Outcome::Success);
    };
    let refusal = error.downcast::<Refusal>()?;
    writeln!(io::stdout(), "{refusal}")?;
    Ok(Outcome::Success)
}

/// Prints the error with everything that caused it. A reader that went away (`| head`) is no error.
pub(crate) fn report(error: &anyhow::Error) -> Outcome {
    if is_broken_pipe(error) {
        return Outcome::Success;
    }
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let code = code_of(&**error).map(|code| format!("[{code}]"));
    eprintln!("{red}error{}:{red:#} {error}", code.unwrap_or_default());
    for cause in error.chain().skip(1) {
        eprintln!("  caused by: {cause}");
    }
    Outcome::Failure
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
    })
}
