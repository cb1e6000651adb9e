//! The open database file: initialization, commits, and recovery information.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, WriteTransaction};

use crate::path::TreePath;

use super::batch::{Batch, PendingChanges, Sessions};
use super::file_error::{StoreFileError, catch_panics};
use super::format::{
    EPHEMERALS, FORMAT, META, META_EPOCH, META_FORMAT, META_ZXID, NODES, NodeValue, key,
};
use super::snapshot::Snapshot;
use super::storage_file::StorageFile;

/// The width of the lower half of transaction ids, which starts from zero each time the file is opened.
const EPOCH_SHIFT: u32 = 32;

#[derive(Debug)]
pub(super) struct StoreFile {
    database: Database,
    file: Arc<Path>,
    generation: u64,
}

impl StoreFile {
    /// Opens the file and verifies all of it.
    pub(super) fn open(
        storage_file: &dyn StorageFile,
        generation: u64,
    ) -> Result<Self, StoreFileError> {
        catch_panics(|| {
            let mut database = storage_file.open()?;
            if !database.check_integrity()? {
                let file = storage_file.name();
                tracing::error!(
                    file = %file.display(),
                    "repaired damaged store file; its newest changes may be missing"
                );
            }
            let store = Self {
                database,
                file: storage_file.name(),
                generation,
            };
            store.check_format()?;
            Ok(store)
        })
    }

    /// Checks the format. A file without tables is new.
    fn check_format(&self) -> Result<(), StoreFileError> {
        match self.meta(META_FORMAT)? {
            Some(found) if found > FORMAT => Err(StoreFileError::Newer { found }),
            Some(_) => Ok(()),
            None => {
                let transaction = self.database.begin_write()?;
                transaction.open_table(EPHEMERALS)?;
                transaction
                    .open_table(NODES)?
                    .insert(&*key(&TreePath::root()), &*NodeValue::default().encode())?;
                transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
                Ok(transaction.commit()?)
            }
        }
    }

    /// Starts a new epoch, which makes transaction ids unique, and deletes the ephemeral records of the last one.
    pub(super) fn start_epoch(&self, now: i64) -> Result<i64, StoreFileError> {
        catch_panics(|| self.try_begin_epoch(now))
    }

    fn try_begin_epoch(&self, now: i64) -> Result<i64, StoreFileError> {
        let epoch = self.meta(META_EPOCH)?.unwrap_or(0) + 1;
        let zxid = epoch << EPOCH_SHIFT;
        let left = self.stale_ephemerals()?;
        let snapshot = self.snapshot(zxid)?;
        let mut batch = Batch::new(&snapshot, &left, now);
        for session in left.keys() {
            // Fails only on read errors, which the batch stores.
            let _ = batch.end_session(*session);
        }
        if let Some(file_error) = batch.file_error {
            return Err(file_error);
        }
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert(META_EPOCH, epoch)?;
        write(&transaction, &batch.changes)?;
        transaction.commit()?;
        Ok(epoch)
    }

    fn stale_ephemerals(&self) -> Result<Sessions, StoreFileError> {
        let mut left = Sessions::new();
        for entry in self.database.begin_read()?.open_table(EPHEMERALS)?.iter()? {
            let (path, owner) = entry?;
            if let Ok(path) = TreePath::new(path.value()) {
                left.entry(owner.value()).or_default().insert(path);
            }
        }
        Ok(left)
    }

    /// Commits changes and syncs them to disk.
    pub(super) fn write_durably(
        &self,
        changes: &PendingChanges,
        zxid: i64,
    ) -> Result<(), StoreFileError> {
        catch_panics(|| {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert(META_ZXID, zxid)?;
            write(&transaction, changes)?;
            Ok(transaction.commit()?)
        })
    }

    /// Commits changes without syncing. They become durable with the next durable commit; a crash before reverts them.
    pub(super) fn write_non_durably(&self, changes: &PendingChanges) -> Result<(), StoreFileError> {
        catch_panics(|| {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            write(&transaction, changes)?;
            Ok(transaction.commit()?)
        })
    }

    /// Returns the last durable transaction id.
    pub(super) fn durable_zxid(&self) -> Result<i64, StoreFileError> {
        catch_panics(|| Ok(self.meta(META_ZXID)?.unwrap_or(0)))
    }

    pub(super) fn snapshot(&self, zxid: i64) -> Result<Snapshot, StoreFileError> {
        catch_panics(|| Snapshot::take(&self.database, &self.file, zxid, self.generation))
    }

    /// Closes the file, ignoring errors.
    pub(super) fn close(self) {
        // Unsynced changes are applied again or were never acknowledged.
        let _ = catch_panics(|| {
            drop(self.database);
            Ok(())
        });
    }

    fn meta(&self, name: &str) -> Result<Option<i64>, StoreFileError> {
        match self.database.begin_read()?.open_table(META) {
            Ok(table) => Ok(table.get(name)?.map(|value| value.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the first transaction id of an epoch, which is also the base of its session ids.
pub(super) fn epoch_base(epoch: i64) -> i64 {
    epoch << EPOCH_SHIFT
}

fn write(transaction: &WriteTransaction, changes: &PendingChanges) -> Result<(), StoreFileError> {
    let mut nodes = transaction.open_table(NODES)?;
    for (path, node) in &changes.nodes {
        let key = key(path);
        match node {
            Some(node) => drop(nodes.insert(&*key, &*node.encode())?),
            None => drop(nodes.remove(&*key)?),
        }
    }
    if !changes.ephemerals.is_empty() {
        let mut ephemerals = transaction.open_table(EPHEMERALS)?;
        for (path, ephemeral) in &changes.ephemerals {
            if ephemeral.alive {
                ephemerals.insert(path.as_str(), ephemeral.owner)?;
            } else {
                ephemerals.remove(path.as_str())?;
            }
        }
    }
    Ok(())
}
