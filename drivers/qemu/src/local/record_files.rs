//! Records of machines and uploads: small JSON files beside the files that they describe.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nodeyard_model::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::write_atomically;
use crate::host::LocalId;

/// Younger files without a record are kept: their record may be written soon.
const ORPHAN_AGE: Duration = Duration::from_secs(3600);

/// A directory with records, locks, and the files they belong to.
#[derive(Debug)]
pub(super) struct RecordDirectory {
    directory: PathBuf,
}

impl RecordDirectory {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn record_file(&self, id: &LocalId) -> PathBuf {
        self.path(&format!("{id}.json"))
    }

    pub(super) fn write(&self, id: &LocalId, record: &impl Serialize) -> io::Result<()> {
        create_private(&self.directory)?;
        let text = serde_json::to_vec_pretty(record)?;
        write_atomically(&self.record_file(id), &text)
    }

    pub(super) fn read<T: DeserializeOwned>(&self, id: &LocalId) -> io::Result<Option<T>> {
        read(&self.record_file(id))
    }

    pub(super) fn remove(&self, id: &LocalId) -> io::Result<()> {
        unless_missing(fs::remove_file(self.lock_file(id)))?;
        unless_missing(fs::remove_file(self.record_file(id)))
    }

    fn lock_file(&self, id: &LocalId) -> PathBuf {
        self.path(&format!("{id}.lock"))
    }

    /// Returns a lock for a process to be started, or None if another process holds it. It is held as long as the file is
    /// open, so that a process that inherits it is visible from its start.
    pub(super) fn lock(&self, id: &LocalId) -> io::Result<Option<File>> {
        let mut options = File::options();
        options.create(true).truncate(false).write(true).read(true);
        try_lock(options.open(self.lock_file(id))?)
    }

    /// Returns whether a process that was started with the lock exists.
    pub(super) fn is_locked(&self, id: &LocalId) -> io::Result<bool> {
        match File::open(self.lock_file(id)) {
            Ok(file) => Ok(try_lock(file)?.is_none()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns all records, ordered by id.
    pub(super) fn read_all<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for path in self.entries()? {
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if path.extension().is_some_and(|end| end == "json") && !hidden {
                match read(&path) {
                    Ok(record) => all.extend(record),
                    // A damaged record must not hide the others.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        tracing::warn!(%error, "ignoring damaged record");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }

    fn entries(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    }

    /// Removes old files without a record that are not in use, left behind by a killed process or a crash of the host.
    pub(super) fn collect_garbage(
        &self,
        now: Timestamp,
        in_use: impl Fn(&str) -> bool,
    ) -> io::Result<usize> {
        let mut count = 0;
        for path in self.entries()? {
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(SystemTime::now());
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            let has_record =
                fs::metadata(self.path(&format!("{stem}.json"))).is_ok_and(|file| file.len() > 0);
            if has_record || now.since(modified.into()) < ORPHAN_AGE || in_use(stem) {
                continue;
            }
            let removed = if metadata.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            unless_missing(removed)?;
            count += 1;
        }
        Ok(count)
    }
}

pub(super) fn try_lock(file: File) -> io::Result<Option<File>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns None if the file does not exist, or if it is empty after a crash of the host.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                let text = format!("{} is damaged: {error}", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a directory without access for other users: it will contain user data and keys.
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

pub(super) fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes a directory even if a left-over program still writes to it. Runs on the thread of the caller: another thread
/// would continue after a cancellation, and remove files that were created since.
pub(super) async fn remove_directory(path: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 1..TRIES {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return unless_missing(result),
        }
    }
    unless_missing(fs::remove_dir_all(path))
}
