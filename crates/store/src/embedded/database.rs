//! The open file: preparing it, writing changes to it, and asking it what happened.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, WriteTransaction};

use crate::path::TreePath;

use super::batch::{Batch, Changes, Sessions};
use super::fault::{Fault, contained};
use super::format::{
    EPHEMERALS, FORMAT, META, META_EPOCH, META_FORMAT, META_ZXID, NODES, Node, key,
};
use super::medium::Medium;
use super::snapshot::Snapshot;

/// The lower half of transaction numbers, which starts from zero each time the file is opened.
const EPOCH_SHIFT: u32 = 32;

#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    file: Arc<Path>,
    generation: u64,
}

impl Store {
    /// Opens the file and reads all of it once, so that damage is found here and not later.
    pub(super) fn open(medium: &dyn Medium, generation: u64) -> Result<Self, Fault> {
        contained(|| {
            let mut database = medium.open()?;
            if !database.check_integrity()? {
                let file = medium.name();
                tracing::error!(
                    file = %file.display(),
                    "the store was damaged and has been repaired; its newest changes may be missing"
                );
            }
            let store = Self {
                database,
                file: medium.name(),
                generation,
            };
            store.expect_format()?;
            Ok(store)
        })
    }

    /// A file without tables is a new one, or one whose first commit never happened.
    fn expect_format(&self) -> Result<(), Fault> {
        match self.meta(META_FORMAT)? {
            Some(found) if found > FORMAT => Err(Fault::Newer { found }),
            Some(_) => Ok(()),
            None => {
                let transaction = self.database.begin_write()?;
                transaction.open_table(EPHEMERALS)?;
                transaction
                    .open_table(NODES)?
                    .insert(&*key(&TreePath::root()), &*Node::default().encode())?;
                transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
                Ok(transaction.commit()?)
            }
        }
    }

    /// Begins a new epoch: the ephemeral records of the last one go, its numbers are not used again.
    pub(super) fn begin_epoch(&self, now: i64) -> Result<i64, Fault> {
        contained(|| self.try_begin_epoch(now))
    }

    fn try_begin_epoch(&self, now: i64) -> Result<i64, Fault> {
        let epoch = self.meta(META_EPOCH)?.unwrap_or(0) + 1;
        let zxid = epoch << EPOCH_SHIFT;
        let left = self.leftovers()?;
        let snapshot = self.snapshot(zxid)?;
        let mut batch = Batch::new(&snapshot, &left, now);
        for session in left.keys() {
            // It can fail only because the file cannot be read, and the batch remembers that.
            let _ = batch.end_session(*session);
        }
        if let Some(fault) = batch.fault {
            return Err(fault);
        }
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert(META_EPOCH, epoch)?;
        write(&transaction, &batch.changes)?;
        transaction.commit()?;
        Ok(epoch)
    }

    fn leftovers(&self) -> Result<Sessions, Fault> {
        let mut left = Sessions::new();
        for entry in self.database.begin_read()?.open_table(EPHEMERALS)?.iter()? {
            let (path, owner) = entry?;
            if let Ok(path) = TreePath::new(path.value()) {
                left.entry(owner.value()).or_default().insert(path);
            }
        }
        Ok(left)
    }

    /// Returns when the changes are on the disk.
    pub(super) fn write_durably(&self, changes: &Changes, zxid: i64) -> Result<(), Fault> {
        contained(|| {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert(META_ZXID, zxid)?;
            write(&transaction, changes)?;
            Ok(transaction.commit()?)
        })
    }

    /// Returns when readers can see the changes. They reach the disk with the next durable write;
    /// until then a crash takes them back, all that came after included.
    pub(super) fn write_quickly(&self, changes: &Changes) -> Result<(), Fault> {
        contained(|| {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            write(&transaction, changes)?;
            Ok(transaction.commit()?)
        })
    }

    /// The last transaction that was written durably.
    pub(super) fn durable_zxid(&self) -> Result<i64, Fault> {
        contained(|| Ok(self.meta(META_ZXID)?.unwrap_or(0)))
    }

    pub(super) fn snapshot(&self, zxid: i64) -> Result<Snapshot, Fault> {
        contained(|| Snapshot::take(&self.database, &self.file, zxid, self.generation))
    }

    /// Closes the file, in whatever state it is.
    pub(super) fn close(self) {
        // There is nobody to tell: what is not on the disk is repeated or was never promised.
        let _ = contained(|| {
            drop(self.database);
            Ok(())
        });
    }

    fn meta(&self, name: &str) -> Result<Option<i64>, Fault> {
        match self.database.begin_read()?.open_table(META) {
            Ok(table) => Ok(table.get(name)?.map(|value| value.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The first transaction number of an epoch, and the base of its session ids.
pub(super) fn epoch_base(epoch: i64) -> i64 {
    epoch << EPOCH_SHIFT
}

fn write(transaction: &WriteTransaction, changes: &Changes) -> Result<(), Fault> {
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
