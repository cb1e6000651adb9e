//! Programs that tests write.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Writes a program, in place of what was there.
///
/// The kernel does not run a file that somebody has open for writing, and what one thread has open is inherited, for a
/// moment, by all that another one starts. So a process of its own writes it.
pub fn executable(path: &Path, text: &str) -> Result<()> {
    let mut writer = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run install")?;
    let mut stdin = writer.stdin.take().context("install has no input")?;
    stdin.write_all(text.as_bytes())?;
    drop(stdin);
    ensure!(writer.wait()?.success(), "cannot write {}", path.display());
    Ok(())
}
