//! Makes up for syncs that failed.
//!
//! After a failed sync, the system counts the pages as clean although the disk does not have them; a later
//! sync that succeeds says nothing about them. So what was written since the last good sync is remembered,
//! and after a failure written once more before the next sync. What to write is read back from the
//! system's cache, which still has it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

/// Survives that the storage is opened again.
#[derive(Debug, Default, Clone)]
pub(super) struct Ledger(Arc<Mutex<Unsynced>>);

#[derive(Debug, Default)]
struct Unsynced {
    /// Where something was written, and how much.
    ranges: BTreeMap<u64, usize>,
    /// The last sync failed.
    suspect: bool,
}

impl Ledger {
    pub(super) fn over<B: StorageBackend>(&self, storage: B) -> Resync<B> {
        Resync {
            storage,
            ledger: self.clone(),
        }
    }

    /// A panic while the lock is held leaves at worst a range too many, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, Unsynced> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Resync<B> {
    storage: B,
    ledger: Ledger,
}

impl<B: StorageBackend> Resync<B> {
    fn write_again(&self, ranges: &BTreeMap<u64, usize>) -> io::Result<()> {
        let end = self.storage.len()?;
        for (&at, &len) in ranges {
            // The file may have become shorter.
            let len = end.saturating_sub(at).min(len as u64);
            let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
            self.storage.read(at, &mut data)?;
            self.storage.write(at, &data)?;
        }
        Ok(())
    }
}

impl<B: StorageBackend> StorageBackend for Resync<B> {
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
            self.write_again(&unsynced.ranges)?;
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
