//! The logs of a machine: its console and the messages of QEMU, of limited size.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

pub(super) const CONSOLE: &str = "console.log";
pub(super) const QEMU_LOG: &str = "qemu.log";
/// How much of a log is kept on disk.
const KEPT: u64 = 256 * 1024;
/// The size above which the older part is removed.
const LIMIT: u64 = 1024 * 1024;
/// How much of a log is evidence.
const SHOWN: u64 = 8 * 1024;

/// Frees the disk space of the older part of the logs. QEMU holds the files open and appends to them, so that they keep
/// their length and get a hole.
pub(super) fn limit_size(directory: &Path) {
    for name in [CONSOLE, QEMU_LOG] {
        let punched = OpenOptions::new()
            .write(true)
            .open(directory.join(name))
            .and_then(|file| punch(&file));
        match punched {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(directory = %directory.display(), name, %error, "failed to limit the size of a log");
            }
            _ => {}
        }
    }
}

fn punch(file: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    if metadata.blocks() * 512 <= LIMIT {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, 0, metadata.len().saturating_sub(KEPT))?;
    Ok(())
}

/// Returns the end of the console and of the messages of QEMU.
pub(super) fn evidence(directory: &Path) -> String {
    let mut text = String::new();
    for (name, title) in [(CONSOLE, "the console ends with"), (QEMU_LOG, "QEMU says")] {
        let tail = tail(&directory.join(name)).unwrap_or_default();
        if !tail.is_empty() {
            text.push_str(&format!("{title}:\n{tail}\n"));
        }
    }
    text
}

/// Returns the end of a log without control characters.
pub(super) fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SHOWN)))?;
    let mut bytes = Vec::new();
    file.take(SHOWN).read_to_end(&mut bytes)?;
    let text: String = String::from_utf8_lossy(&bytes)
        .chars()
        .filter(|char| *char == '\n' || *char == '\t' || !char.is_control())
        .collect();
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_long_console_keeps_its_end_and_little_disk_space() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CONSOLE);
        let mut writer = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        for number in 0..60_000 {
            writeln!(
                writer,
                "line {number} \u{1b}[0m of a guest that never stops talking"
            )
            .unwrap();
        }
        limit_size(directory.path());
        let kept = std::fs::metadata(&path).unwrap().blocks() * 512;
        assert!(kept <= KEPT + 64 * 1024, "{kept} bytes are kept");
        writeln!(writer, "the last word").unwrap();
        let text = evidence(directory.path());
        assert!(
            text.ends_with("line 59999 [0m of a guest that never stops talking\nthe last word\n"),
            "{text}"
        );
        assert!(text.len() < 10_000);
    }
}
