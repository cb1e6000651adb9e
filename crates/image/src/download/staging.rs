//! [`StagingFile`]: stores the received data of a download, so that it can be resumed.
//!
//! ```text
//! <staging path>.part        the data, each byte at its offset
//! <staging path>.part.json   the source and the received ranges
//! ```
//!
//! Data is synced before the record is written, so a download can be resumed after a crash. Blocking writes cannot be
//! cancelled with their future, so each attempt has a number, and writes of earlier attempts are discarded.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::DownloadError;
use super::probe::RemoteFile;
use super::ranges::ByteRangeSet;
use crate::files::{self, AttemptExt as _, FileError};

/// The maximum size of the record file.
const MAX_RECORD_LEN: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// How long to wait for a previous download to release the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct StagingFile {
    pub(super) path: PathBuf,
    record: PathBuf,
    /// Locked while this exists.
    pub(super) file: Arc<File>,
    /// The current attempt, which may write.
    attempt: RwLock<u64>,
    /// Serializes writes of the record.
    saving: Mutex<()>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StagingRecord {
    source: RemoteFile,
    done: ByteRangeSet,
}

impl StagingFile {
    /// Opens and locks the staging file.
    pub(super) fn open(staging_path: &Path) -> Result<Self, DownloadError> {
        if let Some(directory) = staging_path.parent() {
            files::create_dir(directory)?;
        }
        let path = with_suffix(staging_path, ".part");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .attempt("open", &path)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => return Err(DownloadError::InProgress { path }),
                Err(TryLockError::Error(error)) => {
                    return Err(FileError::new("lock", &path, error).into());
                }
            }
        }
        // The previous owner may have moved or removed the file.
        let current = path.symlink_metadata().map(|meta| meta.ino()).ok();
        if current != Some(file.metadata().attempt("inspect", &path)?.ino()) {
            return Err(DownloadError::InProgress { path });
        }
        Ok(Self {
            record: with_suffix(&path, ".json"),
            path,
            file: Arc::new(file),
            attempt: RwLock::new(0),
            saving: Mutex::new(()),
        })
    }

    /// Starts an attempt. Returns its number and the ranges that can be reused; other data is discarded.
    pub(super) fn start_attempt(
        &self,
        source: &RemoteFile,
        pieces: bool,
    ) -> Result<(u64, ByteRangeSet), FileError> {
        let mut attempt = self.lock_writers();
        *attempt += 1;
        let known = self
            .read()
            .filter(|record| source.is_continuation_of(&record.source));
        if let Some(StagingRecord { done, .. }) = known.filter(|_| pieces) {
            return Ok((*attempt, done));
        }
        self.empty()?;
        if let Some(size) = source.size.filter(|_| pieces) {
            self.file.set_len(size).attempt("enlarge", &self.path)?;
        }
        Ok((*attempt, ByteRangeSet::default()))
    }

    /// Discards all data.
    pub(super) fn clear(&self) -> Result<(), FileError> {
        let mut attempt = self.lock_writers();
        *attempt += 1;
        self.empty()
    }

    fn empty(&self) -> Result<(), FileError> {
        files::remove_file(&self.record)?;
        self.file.set_len(0).attempt("empty", &self.path)
    }

    /// Blocks all writes while held.
    fn lock_writers(&self) -> RwLockWriteGuard<'_, u64> {
        self.attempt.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the attempt current while held. Returns `None` if it is not current.
    fn enter_attempt(&self, attempt: u64) -> Option<RwLockReadGuard<'_, u64>> {
        let current = self.attempt.read().unwrap_or_else(PoisonError::into_inner);
        (*current == attempt).then_some(current)
    }

    /// Writes bytes at an offset, unless the attempt has ended.
    pub(super) fn write(
        &self,
        attempt: u64,
        bytes: &[u8],
        at: u64,
        sparse: bool,
    ) -> Result<(), FileError> {
        match self.enter_attempt(attempt) {
            Some(_current) => write(&self.file, bytes, at, sparse).attempt("write", &self.path),
            None => Ok(()),
        }
    }

    /// Syncs the data and writes the record, unless the attempt has ended.
    pub(super) fn save(
        &self,
        attempt: u64,
        source: &RemoteFile,
        done: ByteRangeSet,
    ) -> Result<(), FileError> {
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.sync_data().attempt("sync", &self.path)?;
        let Some(_current) = self.enter_attempt(attempt) else {
            return Ok(());
        };
        let source = source.clone();
        let record = serde_json::to_vec(&StagingRecord { source, done }).unwrap_or_default();
        let written = files::write_atomic(&self.record, &record);
        if written.is_err() {
            // For example on a full disk.
            let _ignored = files::remove_file(&with_suffix(&self.record, ".tmp"));
        }
        written
    }

    /// Removes the data and the record.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        let mut attempt = self.lock_writers();
        *attempt += 1;
        files::remove_file(&self.record)?;
        files::remove_file(&self.path)
    }

    /// Moves the complete data to `target` and removes the record.
    pub(super) fn move_to(&self, target: &Path) -> Result<(), FileError> {
        let mut attempt = self.lock_writers();
        *attempt += 1;
        self.file.sync_all().attempt("sync", &self.path)?;
        files::rename(&self.path, target)?;
        files::remove_file(&self.record)
    }

    fn read(&self) -> Option<StagingRecord> {
        let file = files::open_regular(&self.record).ok()?;
        let mut text = Vec::new();
        file.take(MAX_RECORD_LEN).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Writes bytes at an offset. With `sparse`, skips blocks of zeros; the file must be empty there.
fn write(file: &File, bytes: &[u8], at: u64, sparse: bool) -> std::io::Result<()> {
    if !sparse {
        return file.write_all_at(bytes, at);
    }
    let into_block = usize::try_from(at % BLOCK as u64).unwrap_or(0);
    let (first, rest) = bytes.split_at((BLOCK - into_block).min(bytes.len()));
    let mut run: Option<(u64, usize)> = None;
    let mut offset = 0;
    for block in std::iter::once(first).chain(rest.chunks(BLOCK)) {
        if block.iter().any(|byte| *byte != 0) {
            let (_, length) = run.get_or_insert((offset as u64, 0));
            *length += block.len();
        } else if let Some((start, length)) = run.take() {
            write_run(file, bytes, at, start, length)?;
        }
        offset += block.len();
    }
    match run {
        Some((start, length)) => write_run(file, bytes, at, start, length),
        None => Ok(()),
    }
}

fn write_run(file: &File, bytes: &[u8], at: u64, start: u64, length: usize) -> std::io::Result<()> {
    let from = usize::try_from(start).unwrap_or(usize::MAX);
    let run = bytes.get(from..).and_then(|rest| rest.get(..length));
    file.write_all_at(run.unwrap_or_default(), at + start)
}

fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_become_holes() {
        let directory = tempfile::tempdir().unwrap();
        let mut content = vec![0u8; 6 * BLOCK];
        content[BLOCK - 1] = 1;
        content[4 * BLOCK + 5] = 2;
        for cut in [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK] {
            let path = directory.path().join(cut.to_string());
            let file = File::create(&path).unwrap();
            file.set_len(content.len() as u64).unwrap();
            let (head, tail) = content.split_at(cut);
            write(&file, tail, cut as u64, true).unwrap();
            write(&file, head, 0, true).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content, "{cut}");
        }
    }
}
