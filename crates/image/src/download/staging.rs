//! Where a download is kept until it is complete: the bytes, and what is known of them.
//!
//! ```text
//! <place>.part        the bytes, each at its place
//! <place>.part.json   where they are from and which of them are there
//! ```
//!
//! The second file never says more than is on disk: the bytes are synced first. So a process that was killed, or a
//! host that lost its power, goes on where the file says.
//!
//! A write that was begun cannot be called back when its download is. So each attempt has a number, and what an
//! earlier one still has under way when the next begins, or when the files go, comes to nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::DownloadError;
use super::probe::Source;
use super::ranges::Ranges;
use crate::files::{self, FileError, Try as _};

/// What a side-car has at most.
const LONGEST_RECORD: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// How long whoever was here a moment ago may take to let go.
const PREDECESSOR: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Staging {
    pub(super) path: PathBuf,
    record: PathBuf,
    /// Locked as long as this lives.
    pub(super) file: Arc<File>,
    /// The number of the attempt that may write.
    attempt: RwLock<u64>,
    /// Held by whoever writes the record.
    saving: Mutex<()>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    source: Source,
    done: Ranges,
}

impl Staging {
    /// Takes the place for this download. One download has it at a time.
    pub(super) fn open(place: &Path) -> Result<Self, DownloadError> {
        if let Some(directory) = place.parent() {
            files::create_dir(directory)?;
        }
        let path = with_ending(place, ".part");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .attempt("open", &path)?;
        let deadline = Instant::now() + PREDECESSOR;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => return Err(DownloadError::Busy { path }),
                Err(TryLockError::Error(error)) => {
                    return Err(FileError::new("lock", &path, error).into());
                }
            }
        }
        // Who had it before may have moved or removed the file.
        let current = path.symlink_metadata().map(|meta| meta.ino()).ok();
        if current != Some(file.metadata().attempt("look at", &path)?.ino()) {
            return Err(DownloadError::Busy { path });
        }
        Ok(Self {
            record: with_ending(&path, ".json"),
            path,
            file: Arc::new(file),
            attempt: RwLock::new(0),
            saving: Mutex::new(()),
        })
    }

    /// Begins an attempt: its number, and what is there of this source. What is there of another one is thrown away,
    /// and so is everything if pieces of it do not fit together.
    pub(super) fn begin(&self, source: &Source, pieces: bool) -> Result<(u64, Ranges), FileError> {
        let mut attempt = self.alone();
        *attempt += 1;
        let known = self
            .read()
            .filter(|record| source.continues(&record.source));
        if let Some(Record { done, .. }) = known.filter(|_| pieces) {
            return Ok((*attempt, done));
        }
        self.empty()?;
        if let Some(size) = source.size.filter(|_| pieces) {
            self.file.set_len(size).attempt("enlarge", &self.path)?;
        }
        Ok((*attempt, Ranges::default()))
    }

    /// Throws away what is there.
    pub(super) fn clear(&self) -> Result<(), FileError> {
        let mut attempt = self.alone();
        *attempt += 1;
        self.empty()
    }

    fn empty(&self) -> Result<(), FileError> {
        files::remove_file(&self.record)?;
        self.file.set_len(0).attempt("empty", &self.path)
    }

    /// Nobody writes as long as this is held.
    fn alone(&self) -> RwLockWriteGuard<'_, u64> {
        self.attempt.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attempt does not end as long as this is held; none if it has.
    fn during(&self, attempt: u64) -> Option<RwLockReadGuard<'_, u64>> {
        let current = self.attempt.read().unwrap_or_else(PoisonError::into_inner);
        (*current == attempt).then_some(current)
    }

    /// Writes bytes to their place, unless the attempt is over.
    pub(super) fn write(
        &self,
        attempt: u64,
        bytes: &[u8],
        at: u64,
        sparse: bool,
    ) -> Result<(), FileError> {
        match self.during(attempt) {
            Some(_current) => write(&self.file, bytes, at, sparse).attempt("write", &self.path),
            None => Ok(()),
        }
    }

    /// Makes what is done last, unless the attempt is over.
    pub(super) fn save(
        &self,
        attempt: u64,
        source: &Source,
        done: Ranges,
    ) -> Result<(), FileError> {
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.sync_data().attempt("sync", &self.path)?;
        let Some(_current) = self.during(attempt) else {
            return Ok(());
        };
        let source = source.clone();
        let record = serde_json::to_vec(&Record { source, done }).unwrap_or_default();
        let written = files::write_atomic(&self.record, &record);
        if written.is_err() {
            // On a full disk, say; half of a record is of no use.
            let _left = files::remove_file(&with_ending(&self.record, ".tmp"));
        }
        written
    }

    /// The download is over, one way or the other; nothing of it stays.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        let mut attempt = self.alone();
        *attempt += 1;
        files::remove_file(&self.record)?;
        files::remove_file(&self.path)
    }

    /// The bytes are all there and are to be the file `target`.
    pub(super) fn become_file(&self, target: &Path) -> Result<(), FileError> {
        let mut attempt = self.alone();
        *attempt += 1;
        self.file.sync_all().attempt("sync", &self.path)?;
        files::rename(&self.path, target)?;
        files::remove_file(&self.record)
    }

    fn read(&self) -> Option<Record> {
        let file = files::open_regular(&self.record).ok()?;
        let mut text = Vec::new();
        file.take(LONGEST_RECORD).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Writes bytes to their place. With `sparse`, blocks of zeros are left out: the file was empty there.
fn write(file: &File, bytes: &[u8], at: u64, sparse: bool) -> std::io::Result<()> {
    if !sparse {
        return file.write_all_at(bytes, at);
    }
    let into_block = usize::try_from(at % BLOCK as u64).unwrap_or(0);
    let (first, rest) = bytes.split_at((BLOCK - into_block).min(bytes.len()));
    let mut run: Option<(u64, usize)> = None;
    let mut place = 0;
    for block in std::iter::once(first).chain(rest.chunks(BLOCK)) {
        if block.iter().any(|byte| *byte != 0) {
            let (_, length) = run.get_or_insert((place as u64, 0));
            *length += block.len();
        } else if let Some((start, length)) = run.take() {
            write_run(file, bytes, at, start, length)?;
        }
        place += block.len();
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

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_holes_wherever_a_piece_begins() {
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
