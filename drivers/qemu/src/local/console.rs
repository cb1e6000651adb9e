//! What a machine and its QEMU have written: kept for when something goes wrong, within bounds.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

pub(super) const CONSOLE: &str = "console.log";
pub(super) const QEMU_LOG: &str = "qemu.log";
/// How much of a console stays on the disk.
const KEPT: u64 = 256 * 1024;
/// How much may gather before the older part goes.
const LIMIT: u64 = 1024 * 1024;
/// How much of each is shown.
const SHOWN: u64 = 8 * 1024;

/// Gives the room of the older part of a long log back. QEMU holds the file open and appends to it, so the file
/// keeps its length and gets a hole.
pub(super) fn bound(directory: &Path) {
    for name in [CONSOLE, QEMU_LOG] {
        let punched = OpenOptions::new()
            .write(true)
            .open(directory.join(name))
            .and_then(|file| punch(&file));
        match punched {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(directory = %directory.display(), name, %error, "a log could not be bounded");
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

/// The end of the console and of QEMU's own messages.
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

/// The last part of a log, without what a terminal would not show.
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
    fn a_chatty_console_keeps_its_end_and_little_room() {
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
        bound(directory.path());
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
