//! The log and the progress of a build.
//!
//! Readers follow the log file, so a slow reader does not slow down the build. The size of the file is limited: it contains
//! the beginning and the end of the output, with a note between them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nodeyard_image::ImageId;
use nodeyard_model::ImageName;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::Redactor;

const EXTENSION: &str = "log";

/// The permissions of new logs and of their new directories, because the output of a build may contain secrets.
const LOG_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;

/// Limits how much output of a build is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// The number of bytes kept from the beginning, written as they arrive.
    pub head: u64,
    /// The number of bytes kept from the end, written when the build has ended.
    pub tail: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            head: 256 << 20,
            tail: 1 << 20,
        }
    }
}

/// The state of a build log and the progress of its build.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogState {
    /// The number of bytes in the file.
    pub length: u64,
    /// The number of completed steps and of all steps, if the build reports progress.
    pub progress: Option<(u64, u64)>,
    /// Whether the log is complete.
    pub ended: bool,
}

/// Records the output and the progress of a build.
#[derive(Debug)]
pub struct BuildConsole {
    file: Option<File>,
    path: PathBuf,
    limits: LogLimits,
    redactor: Redactor,
    /// The end of the output after the head, possibly longer than its limit.
    tail: Vec<u8>,
    /// The number of bytes after the head.
    beyond: u64,
    state: watch::Sender<LogState>,
}

impl BuildConsole {
    /// Returns the path of a build log.
    pub fn path(directory: &Path, image: &ImageName, id: &ImageId) -> PathBuf {
        directory.join(format!("{image}-{id}.{EXTENSION}"))
    }

    /// Opens a log file, truncating an existing one.
    pub async fn open(path: PathBuf, limits: LogLimits, redactor: Redactor) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            tokio::fs::DirBuilder::new()
                .recursive(true)
                .mode(DIRECTORY_MODE)
                .create(directory)
                .await?;
        }
        let file = tokio::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(LOG_MODE)
            .open(&path)
            .await?;
        Ok(Self {
            file: Some(file),
            path,
            limits,
            redactor,
            tail: Vec::new(),
            beyond: 0,
            state: watch::Sender::default(),
        })
    }

    /// Creates a console without a file that keeps only the end of the output.
    pub(crate) fn in_memory(tail: usize, redactor: Redactor) -> Self {
        Self {
            file: None,
            path: PathBuf::new(),
            limits: LogLimits { head: 0, tail },
            redactor,
            tail: Vec::new(),
            beyond: 0,
            state: watch::Sender::default(),
        }
    }

    /// Returns the output that was kept in memory.
    pub(crate) fn into_text(mut self) -> String {
        let rest = self.redactor.rest();
        self.tail.extend(rest);
        self.trim();
        String::from_utf8_lossy(&self.tail).into_owned()
    }

    pub fn state(&self) -> watch::Receiver<LogState> {
        self.state.subscribe()
    }

    /// Appends output of a build.
    pub async fn write(&mut self, output: &[u8]) {
        let shown = self.redactor.pass(output);
        self.keep(&shown).await;
    }

    /// Appends a line to the log.
    pub async fn write_line(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes()).await;
    }

    /// Sets the progress of the build.
    pub fn progress(&self, done: u64, all: u64) {
        self.state
            .send_modify(|state| state.progress = Some((done, all)));
    }

    /// Writes the end of the output and completes the log.
    pub async fn end(&mut self) {
        let rest = self.redactor.rest();
        self.keep(&rest).await;
        self.trim();
        let tail = std::mem::take(&mut self.tail);
        let omitted = self.beyond - tail.len() as u64;
        if omitted > 0 {
            let note = format!("\n[nodeyard: {omitted} bytes omitted]\n");
            self.append(note.as_bytes()).await;
        }
        self.append(&tail).await;
        self.state.send_modify(|state| state.ended = true);
    }

    async fn keep(&mut self, output: &[u8]) {
        let length = self.state.borrow().length;
        let room = usize::try_from(self.limits.head.saturating_sub(length)).unwrap_or(usize::MAX);
        // After the head is full, all output goes to the tail.
        let room = if self.beyond == 0 { room } else { 0 };
        let (head, rest) = output.split_at(room.min(output.len()));
        self.append(head).await;
        self.beyond += rest.len() as u64;
        self.tail.extend_from_slice(rest);
        if self.tail.len() > 2 * self.limits.tail {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let excess = self.tail.len().saturating_sub(self.limits.tail);
        self.tail.drain(..excess);
    }

    async fn append(&mut self, output: &[u8]) {
        let Some(file) = self.file.as_mut().filter(|_| !output.is_empty()) else {
            return;
        };
        let written = async {
            file.write_all(output).await?;
            file.flush().await
        };
        match written.await {
            Ok(()) => self
                .state
                .send_modify(|state| state.length += output.len() as u64),
            // The build continues without its log.
            Err(error) => {
                let (error, path) = (&error as &dyn std::error::Error, self.path.display());
                tracing::warn!(error, %path, "failed to write build log; discarding further output");
                self.file = None;
            }
        }
    }
}

impl Drop for BuildConsole {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.ended = true);
    }
}

/// Removes the oldest logs of an image and keeps the newest `keep`. Logs that cannot be removed are retried next time.
pub fn prune_logs(directory: &Path, image: &ImageName, keep: u64) -> io::Result<()> {
    let mut logs: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| is_log_of(image, name)) {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            logs.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        }
    }
    logs.sort();
    let excess = logs.len() as u64 - keep.min(logs.len() as u64);
    for (_, path) in logs.iter().take(usize::try_from(excess).unwrap_or(0)) {
        if let Err(error) = std::fs::remove_file(path) {
            let (error, path) = (&error as &dyn std::error::Error, path.display());
            tracing::warn!(error, %path, "failed to remove old build log");
        }
    }
    Ok(())
}

/// Returns whether a file is a log of the image. Because names and ids may contain dashes, an ambiguous file is taken to belong to
/// the image with the longer name.
fn is_log_of(image: &ImageName, name: &str) -> bool {
    let id = name
        .strip_prefix(image.as_str())
        .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".log"));
    id.is_some_and(|id| {
        id.parse::<ImageId>().is_ok() && (!id.contains('-') || uuid::Uuid::try_parse(id).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn log(limits: LogLimits, pieces: &[&str]) -> (String, LogState) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/down/a-1.log");
        let mut console = BuildConsole::open(path.clone(), limits, Redactor::new(["geheim"]))
            .await
            .unwrap();
        let state = console.state();
        for piece in pieces {
            console.write(piece.as_bytes()).await;
        }
        console.end().await;
        let state = *state.borrow();
        (std::fs::read_to_string(path).unwrap(), state)
    }

    #[tokio::test]
    async fn a_log_keeps_its_beginning_and_its_end() {
        let limits = LogLimits { head: 10, tail: 5 };
        let (text, state) = log(limits, &["0123456789", "abcdef", "ghi", "jklmn"]).await;
        assert_eq!(text, "0123456789\n[nodeyard: 9 bytes omitted]\njklmn");
        assert_eq!(state.length, text.len() as u64);
        assert!(state.ended);
        let (text, _) = log(limits, &["0123456789abc"]).await;
        assert_eq!(text, "0123456789abc");
        let (text, _) = log(LogLimits::default(), &["x geh", "eim"]).await;
        assert_eq!(text, "x ********");
    }

    #[tokio::test]
    async fn new_logs_are_closed_to_others_and_existing_directories_stay_as_they_are() {
        use std::fs::{Permissions, metadata, set_permissions};
        use std::os::unix::fs::PermissionsExt as _;

        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().join("logs/a-1.log");
        BuildConsole::open(path.clone(), LogLimits::default(), Redactor::default())
            .await
            .unwrap();
        let mode = |path: &Path| metadata(path).unwrap().permissions().mode() & 0o777;
        // The umask may take further permissions away.
        assert_eq!(mode(&path) & !0o640, 0);
        assert_eq!(mode(path.parent().unwrap()) & !0o750, 0);
        assert_eq!(mode(directory.path()), 0o755);
    }

    #[test]
    fn prune_logs_removes_the_oldest_logs_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let id = "0123456789abcdef0123456789abcde";
        let names = [
            format!("ubuntu-{id}1.log"),
            format!("ubuntu-{id}2.log"),
            "ubuntu-42.log".to_owned(),
            format!("ubuntu-jammy-{id}1.log"),
            "ubuntu-jammy-42.log".to_owned(),
            "ubuntu-.log".to_owned(),
            format!("ubuntu-{id}1.log.gz"),
            "other.log".to_owned(),
        ];
        for (age, name) in names.iter().enumerate() {
            let file = std::fs::File::create(directory.path().join(name)).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
            file.set_modified(time).unwrap();
        }
        prune_logs(directory.path(), &"ubuntu".parse().unwrap(), 1).unwrap();
        let left: Vec<&String> = names
            .iter()
            .filter(|name| directory.path().join(name).exists())
            .collect();
        assert_eq!(left, names.iter().skip(2).collect::<Vec<_>>());
    }
}
