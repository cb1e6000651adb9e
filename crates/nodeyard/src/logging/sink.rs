//! The outputs of log lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use nodeyard_model::ErrorCode;

use crate::error_codes::WithCode as _;

#[derive(Debug, Clone)]
pub(super) enum Sink {
    Stdout,
    Stderr,
    File(Arc<LogFile>),
}

impl Sink {
    pub(super) fn file(path: &Path) -> anyhow::Result<Self> {
        let opened = open(path).with_context(|| {
            format!(
                "failed to open the log {}; create its directory, or name another with -l",
                path.display()
            )
        });
        let opened = opened.code(ErrorCode::LogFile)?;
        Ok(Self::File(Arc::new(LogFile {
            path: path.to_owned(),
            file: Mutex::new(opened),
        })))
    }

    /// Writes a line. Errors are ignored, because there is nowhere to report them.
    pub(super) fn write(&self, text: &str) {
        let _ = match self {
            Self::Stdout => io::stdout().write_all(text.as_bytes()),
            Self::Stderr => io::stderr().write_all(text.as_bytes()),
            Self::File(file) => file.write(text),
        };
    }
}

/// A log file that is reopened after it was renamed or deleted.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn write(&self, text: &str) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let current = file.metadata()?;
        let moved = std::fs::metadata(&self.path).map_or(true, |named| {
            (named.dev(), named.ino()) != (current.dev(), current.ino())
        });
        if moved {
            // If that fails, the old file is used.
            if let Ok(opened) = open(&self.path) {
                *file = opened;
            }
        }
        file.write_all(text.as_bytes())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_renamed_file_is_reopened() {
        let directory = tempfile::tempdir().unwrap();
        let (log, old) = (directory.path().join("log"), directory.path().join("log.1"));
        let sink = Sink::file(&log).unwrap();
        sink.write("one\n");
        fs::rename(&log, &old).unwrap();
        sink.write("two\n");
        fs::remove_file(&log).unwrap();
        sink.write("three\n");
        assert_eq!(fs::read_to_string(&old).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&log).unwrap(), "three\n");
    }
}
