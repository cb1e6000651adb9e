//! A script on every machine at once. Its exit code is ours.

use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use anyhow::Context as _;
use futures_util::future::join_all;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::Command;

use super::Way;
use crate::exit::Outcome;

/// Longer lines are shown in parts.
const LONGEST_LINE: usize = 64 << 10;

/// With one machine the script has our input and output; with several, each line says where it comes from. The exit
/// code is that of the first machine on which it failed.
pub(super) async fn everywhere(ways: &[Way], script: &str) -> anyhow::Result<Outcome> {
    let codes = match ways {
        [way] => {
            let mut command = command(way, script)?;
            let status = command.status().await.with_context(|| failed(way))?;
            vec![code(status)]
        }
        ways => {
            let all = join_all(ways.iter().map(|way| with_prefix(way, script))).await;
            all.into_iter().collect::<anyhow::Result<_>>()?
        }
    };
    Ok(match codes.into_iter().find(|code| *code != 0) {
        Some(code) => Outcome::Code(code),
        None => Outcome::Success,
    })
}

fn command(way: &Way, script: &str) -> anyhow::Result<Command> {
    let words = way.script(script);
    let (program, arguments) = words.split_first().context("there is no way to it")?;
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    Ok(command)
}

fn failed(way: &Way) -> String {
    format!("{}: `{}` cannot be run", way.name, way.login())
}

fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    let code = status.code().unwrap_or_else(signal);
    u8::try_from(code).unwrap_or(u8::MAX)
}

async fn with_prefix(way: &Way, script: &str) -> anyhow::Result<u8> {
    let mut child = command(way, script)?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| failed(way))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (shown, told, status) = tokio::join!(
        pass_on(way, out, |line| io::stdout().lock().write_all(line)),
        pass_on(way, err, |line| io::stderr().lock().write_all(line)),
        child.wait(),
    );
    shown.and(told)?;
    Ok(code(status?))
}

async fn pass_on(
    way: &Way,
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
            let shown = [format!("[{}] ", way.name).as_bytes(), text, b"\n"].concat();
            // In one piece, so that the lines of several machines do not mix.
            show(&shown)?;
            line.clear();
        }
    }
}
