//! The kit's own store: texts in memory that outlive a process, one point for each write.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nodeyard_model::{NodeId, UploadId};
use serde::{Deserialize, Serialize};

use super::faults::Faults;
use super::life::Violation;
use crate::ids::ExternalId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Key {
    Node(NodeId),
    Upload(UploadId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    Creating,
    Up,
    Deleting,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) phase: Phase,
    pub(super) external_id: Option<ExternalId>,
    pub(super) slot: Option<i64>,
    /// How often in a row its operation failed.
    pub(super) failures: usize,
    /// Whether create was never called for it; what comes from the store may have been acted on.
    #[serde(skip)]
    pub(super) first_attempt: bool,
}

impl Record {
    pub(super) fn new(key: Key) -> Self {
        Self {
            key,
            phase: Phase::Creating,
            external_id: None,
            slot: None,
            failures: 0,
            first_attempt: true,
        }
    }

    pub(super) fn begin_delete(&mut self) {
        self.phase = Phase::Deleting;
        self.failures = 0;
    }
}

#[derive(Debug, Default)]
struct Tables {
    records: BTreeMap<Key, String>,
    next: u64,
    draining: bool,
}

#[derive(Debug, Default)]
pub(super) struct Store(Mutex<Tables>);

impl Store {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that was never used.
    pub(super) fn next_number(&self) -> u64 {
        let mut tables = self.tables();
        tables.next += 1;
        tables.next
    }

    pub(super) fn load(&self) -> Result<Vec<Record>, Violation> {
        let tables = self.tables();
        tables
            .records
            .values()
            .map(|text| serde_json::from_str(text).map_err(|error| Violation::record(&error)))
            .collect()
    }

    pub(super) async fn put(&self, faults: &Faults, record: &Record) -> Result<(), Violation> {
        let text = serde_json::to_string(record).map_err(|error| Violation::record(&error))?;
        let write = || {
            self.tables().records.insert(record.key, text);
        };
        faults.write("put", write).await;
        Ok(())
    }

    pub(super) async fn remove(&self, faults: &Faults, key: Key) {
        let write = || {
            self.tables().records.remove(&key);
        };
        faults.write("remove", write).await;
    }

    /// Begins the end: nothing more is created, and everything is deleted.
    pub(super) async fn drain(&self, faults: &Faults) {
        faults
            .write("drain", || self.tables().draining = true)
            .await;
    }

    pub(super) fn draining(&self) -> bool {
        self.tables().draining
    }
}
