//! Runs a script on all machines at once and returns its exit code.

use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use anyhow::Context as _;
use futures_util::future::join_all;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::Command;

use super::LoginCommand;
use crate::exit::CommandOutcome;

/// The maximum length of a line; longer lines are split.
const LONGEST_LINE: usize = 64 << 10;

/// Runs the script on all machines. With one machine it has our input and output; with several, each line is prefixed
/// with the machine's name. Returns the exit code of the first machine on which it failed.
pub(super) async fn on_all(
    logins: &[LoginCommand],
    script: &str,
) -> anyhow::Result<CommandOutcome> {
    let codes = match logins {
        [login] => {
            let mut command = command(login, script)?;
            let status = command.status().await.with_context(|| failed(login))?;
            vec![code(status)]
        }
        logins => {
            let all = join_all(logins.iter().map(|login| run_with_prefix(login, script))).await;
            all.into_iter().collect::<anyhow::Result<_>>()?
        }
    };
    Ok(match codes.into_iter().find(|code| *code != 0) {
        Some(code) => CommandOutcome::Code(code),
        None => CommandOutcome::Success,
    })
}

fn command(login: &LoginCommand, script: &str) -> anyhow::Result<Command> {
    let words = login.script(script);
    let (program, arguments) = words.split_first().context("no login command")?;
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    Ok(command)
}

fn failed(login: &LoginCommand) -> String {
    format!("{}: failed to run `{}`", login.name, login.command_line())
}

fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    let code = status.code().unwrap_or_else(signal);
    u8::try_from(code).unwrap_or(u8::MAX)
}

async fn run_with_prefix(login: &LoginCommand, script: &str) -> anyhow::Result<u8> {
    let mut child = command(login, script)?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| failed(login))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (shown, copied, status) = tokio::join!(
        forward_lines(login, out, |line| io::stdout().lock().write_all(line)),
        forward_lines(login, err, |line| io::stderr().lock().write_all(line)),
        child.wait(),
    );
    shown.and(copied)?;
    Ok(code(status?))
}

async fn forward_lines(
    login: &LoginCommand,
    from: Option<impl AsyncRead + Unpin>,
    show: impl Fn(&[u8]) -> io::Result<()>,
) -> anyhow::Result<()> {
    let Some(from) = from else { return Ok(()) };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        let part = from.fill_buf().await?;
        if part.is_empty() && line.is_empty() {
            return Ok(());
        }
        let end = part.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(part.len(), |end| end + 1);
        line.extend(part.iter().take(taken));
        let complete = end.is_some() || part.is_empty() || line.len() >= LONGEST_LINE;
        from.consume(taken);
        if complete {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let shown = [format!("[{}] ", login.name).as_bytes(), text, b"\n"].concat();
            // In one write, so that lines of several machines do not mix.
            show(&shown)?;
            line.clear();
        }
    }
}
