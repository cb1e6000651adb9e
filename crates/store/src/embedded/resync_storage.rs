//! [`ResyncStorage`]: repeats writes after a failed sync.
//!
//! After a failed sync the operating system marks the pages as clean although they are not on disk, and a later sync
//! does not write them. So the ranges written since the last successful sync are tracked, and after a failure rewritten
//! from the page cache before the next sync.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

/// The ranges written since the last successful sync. Kept when the file is reopened.
#[derive(Debug, Default, Clone)]
pub(super) struct UnsyncedRanges(Arc<Mutex<UnsyncedState>>);

#[derive(Debug, Default)]
struct UnsyncedState {
    /// Length by offset.
    ranges: BTreeMap<u64, usize>,
    /// The last sync failed.
    suspect: bool,
}

impl UnsyncedRanges {
    pub(super) fn over<B: StorageBackend>(&self, storage: B) -> ResyncStorage<B> {
        ResyncStorage {
            storage,
            ledger: self.clone(),
        }
    }

    /// Ignores poisoning: a panic leaves at most a redundant range.
    fn lock(&self) -> MutexGuard<'_, UnsyncedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct ResyncStorage<B> {
    storage: B,
    ledger: UnsyncedRanges,
}

impl<B: StorageBackend> ResyncStorage<B> {
    fn rewrite(&self, ranges: &BTreeMap<u64, usize>) -> io::Result<()> {
        let end = self.storage.len()?;
        for (&at, &len) in ranges {
            // The file may have been truncated.
            let len = end.saturating_sub(at).min(len as u64);
            let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
            self.storage.read(at, &mut data)?;
            self.storage.write(at, &data)?;
        }
        Ok(())
    }
}

impl<B: StorageBackend> StorageBackend for ResyncStorage<B> {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut unsynced = self.ledger.lock();
        if unsynced.suspect {
            self.rewrite(&unsynced.ranges)?;
        }
        let synced = self.storage.sync_data();
        unsynced.suspect = synced.is_err();
        if synced.is_ok() {
            unsynced.ranges.clear();
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut unsynced = self.ledger.lock();
        let len = unsynced.ranges.entry(offset).or_default();
        *len = data.len().max(*len);
        drop(unsynced);
        self.storage.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.storage.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.query_lock_range(start, end)
    }
}
