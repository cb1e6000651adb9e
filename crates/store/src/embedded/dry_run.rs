//! [`DryRunStorage`]: opens a file with all writes kept in memory.
//!
//! redb tries to repair a damaged file when it opens it, and changes the file even if that fails. So a file is first
//! opened with this storage, and opened for writing only if it is not damaged.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct DryRunStorage<B> {
    storage: B,
    overlay: Mutex<OverlayState>,
}

#[derive(Debug)]
struct OverlayState {
    length: u64,
    /// The length of the underlying storage that is still visible.
    visible: u64,
    /// Changed pages by number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl<B: StorageBackend> DryRunStorage<B> {
    pub(super) fn over(storage: B) -> io::Result<Self> {
        let length = storage.len()?;
        let overlay = Mutex::new(OverlayState {
            length,
            visible: length,
            pages: BTreeMap::new(),
        });
        Ok(Self { storage, overlay })
    }

    /// Ignores poisoning: the storage is not used after a panic.
    fn lock(&self) -> MutexGuard<'_, OverlayState> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a page with all changes.
    fn page(&self, overlay: &OverlayState, number: u64) -> io::Result<Vec<u8>> {
        if let Some(page) = overlay.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE];
        let begin = number * PAGE as u64;
        let there = overlay.visible.saturating_sub(begin).min(PAGE as u64);
        let there = usize::try_from(there).unwrap_or(PAGE);
        if let Some(part) = page.get_mut(..there).filter(|part| !part.is_empty()) {
            self.storage.read(begin, part)?;
        }
        Ok(page)
    }
}

/// Returns the pages of a range: number, offset in the page, and length.
fn pages(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let number = at / PAGE as u64;
        let first = usize::try_from(at % PAGE as u64).unwrap_or(0);
        let count = usize::try_from(end - at).unwrap_or(PAGE).min(PAGE - first);
        at += count as u64;
        Some((number, first, count))
    })
}

impl<B: StorageBackend> StorageBackend for DryRunStorage<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let overlay = self.lock();
        if offset.saturating_add(out.len() as u64) > overlay.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for (number, first, count) in pages(offset, rest.len()) {
            let page = self.page(&overlay, number)?;
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(page.get(first..first + count).unwrap_or_default());
            rest = behind;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut overlay = self.lock();
        overlay.length = length;
        overlay.visible = overlay.visible.min(length);
        let kept = length.div_ceil(PAGE as u64);
        overlay.pages.retain(|number, _| *number < kept);
        let inside = usize::try_from(length % PAGE as u64).unwrap_or(0);
        if inside > 0
            && let Some(last) = overlay.pages.get_mut(&(length / PAGE as u64))
        {
            last.truncate(inside);
            last.resize(PAGE, 0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut overlay = self.lock();
        let mut rest = data;
        for (number, first, count) in pages(offset, data.len()) {
            let mut page = self.page(&overlay, number)?;
            let (part, behind) = rest.split_at(count);
            if let Some(target) = page.get_mut(first..first + count) {
                target.copy_from_slice(part);
            }
            overlay.pages.insert(number, page);
            rest = behind;
        }
        overlay.length = overlay.length.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }

    // Locks are passed through, so that use by another process is not reported as damage.

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.unlock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    #[test]
    fn changes_are_seen_and_do_not_arrive() {
        let below = InMemoryBackend::new();
        below.set_len(10_000).unwrap();
        below.write(0, &[1; 10_000]).unwrap();
        let mut expected = vec![1; 10_000];
        let dry_run = DryRunStorage::over(below).unwrap();
        let read = |offset: u64, length: usize| {
            let mut out = vec![9; length];
            dry_run.read(offset, &mut out).map(|()| out)
        };
        dry_run.write(4_090, &[2; 5_000]).unwrap();
        expected[4_090..9_090].fill(2);
        assert_eq!(read(0, 10_000).unwrap(), expected);
        assert!(read(9_999, 2).is_err());
        dry_run.set_len(5_000).unwrap();
        dry_run.set_len(20_000).unwrap();
        expected.truncate(5_000);
        expected.resize(20_000, 0);
        assert_eq!(read(0, 20_000).unwrap(), expected);
        let mut below = vec![9; 10_000];
        dry_run.storage.read(0, &mut below).unwrap();
        assert_eq!(below, vec![1; 10_000]);
    }
}
