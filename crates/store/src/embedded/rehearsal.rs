//! A trial run of opening a file: what would be written stays in memory.
//!
//! The storage repairs a damaged file as well as it can while it opens it, and the file is not what it was before even
//! if that fails. So a file is opened like this first, and for good only if nothing is wrong with it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct Rehearsal<B> {
    storage: B,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    length: u64,
    /// How much of the storage below is still to be seen.
    visible: u64,
    /// Whole pages, by their number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl<B: StorageBackend> Rehearsal<B> {
    pub(super) fn over(storage: B) -> io::Result<Self> {
        let length = storage.len()?;
        let changes = Mutex::new(Changes {
            length,
            visible: length,
            pages: BTreeMap::new(),
        });
        Ok(Self { storage, changes })
    }

    /// After a panic the storage is not used any more.
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page as it would be by now.
    fn page(&self, changes: &Changes, number: u64) -> io::Result<Vec<u8>> {
        if let Some(page) = changes.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE];
        let begin = number * PAGE as u64;
        let there = changes.visible.saturating_sub(begin).min(PAGE as u64);
        let there = usize::try_from(there).unwrap_or(PAGE);
        if let Some(part) = page.get_mut(..there).filter(|part| !part.is_empty()) {
            self.storage.read(begin, part)?;
        }
        Ok(page)
    }
}

/// The pages that a range touches: number, first byte in the page, and how many.
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

impl<B: StorageBackend> StorageBackend for Rehearsal<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.lock();
        if offset.saturating_add(out.len() as u64) > changes.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for (number, first, count) in pages(offset, rest.len()) {
            let page = self.page(&changes, number)?;
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(page.get(first..first + count).unwrap_or_default());
            rest = behind;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut changes = self.lock();
        changes.length = length;
        changes.visible = changes.visible.min(length);
        let kept = length.div_ceil(PAGE as u64);
        changes.pages.retain(|number, _| *number < kept);
        let inside = usize::try_from(length % PAGE as u64).unwrap_or(0);
        if inside > 0
            && let Some(last) = changes.pages.get_mut(&(length / PAGE as u64))
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
        let mut changes = self.lock();
        let mut rest = data;
        for (number, first, count) in pages(offset, data.len()) {
            let mut page = self.page(&changes, number)?;
            let (part, behind) = rest.split_at(count);
            if let Some(target) = page.get_mut(first..first + count) {
                target.copy_from_slice(part);
            }
            changes.pages.insert(number, page);
            rest = behind;
        }
        changes.length = changes.length.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }

    // Somebody else may be at work on the file, and is not to be taken for damage.

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
        let rehearsal = Rehearsal::over(below).unwrap();
        let read = |offset: u64, length: usize| {
            let mut out = vec![9; length];
            rehearsal.read(offset, &mut out).map(|()| out)
        };
        rehearsal.write(4_090, &[2; 5_000]).unwrap();
        expected[4_090..9_090].fill(2);
        assert_eq!(read(0, 10_000).unwrap(), expected);
        assert!(read(9_999, 2).is_err());
        rehearsal.set_len(5_000).unwrap();
        rehearsal.set_len(20_000).unwrap();
        expected.truncate(5_000);
        expected.resize(20_000, 0);
        assert_eq!(read(0, 20_000).unwrap(), expected);
        let mut below = vec![9; 10_000];
        rehearsal.storage.read(0, &mut below).unwrap();
        assert_eq!(below, vec![1; 10_000]);
    }
}
