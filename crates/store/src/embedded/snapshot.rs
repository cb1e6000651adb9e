//! [`Snapshot`]: a committed state of the tree for readers.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadOnlyTable, ReadableDatabase};

use crate::error::{Error, Result};
use crate::path::TreePath;
use crate::tree::{Listing, Record, Stat};

use super::file_error::{StorageOperation, StoreFileError, catch_panics};
use super::format::{self, NODES, NodeValue};

pub(crate) struct Snapshot {
    nodes: ReadOnlyTable<&'static [u8], &'static [u8]>,
    file: Arc<Path>,
    /// The id of the last transaction in it.
    pub(crate) zxid: i64,
    /// How often the file was reopened; see [`super::writer`].
    pub(super) generation: u64,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("zxid", &self.zxid)
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(super) fn take(
        database: &Database,
        file: &Arc<Path>,
        zxid: i64,
        generation: u64,
    ) -> Result<Self, StoreFileError> {
        Ok(Self {
            nodes: database.begin_read()?.open_table(NODES)?,
            file: file.clone(),
            zxid,
            generation,
        })
    }

    pub(super) fn node(&self, path: &TreePath) -> Result<Option<NodeValue>, StoreFileError> {
        catch_panics(|| match self.nodes.get(&*format::key(path))? {
            None => Ok(None),
            Some(value) => Ok(Some(NodeValue::decode(value.value())?)),
        })
    }

    pub(crate) fn get(&self, path: &TreePath) -> Result<Record> {
        let node = self
            .node(path)
            .map_err(|file_error| self.read_error(&file_error))?;
        node.map(NodeValue::into_record)
            .ok_or_else(|| Error::NoNode { path: path.clone() })
    }

    pub(crate) fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        let node = self
            .node(path)
            .map_err(|file_error| self.read_error(&file_error))?;
        Ok(node.as_ref().map(NodeValue::stat))
    }

    pub(crate) fn children(&self, path: &TreePath) -> Result<Listing> {
        let stat = self.get(path)?.stat;
        let mut names = Vec::with_capacity(usize::try_from(stat.num_children).unwrap_or(0));
        self.scan(path, |name, _| {
            names.push(name.to_owned());
            Ok(())
        })
        .map_err(|file_error| self.read_error(&file_error))?;
        Ok(Listing { names, stat })
    }

    pub(super) fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        let stat = self.get(path)?.stat;
        let mut records = Vec::with_capacity(usize::try_from(stat.num_children).unwrap_or(0));
        self.scan(path, |name, value| {
            records.push((name.to_owned(), NodeValue::decode(value)?.into_record()));
            Ok(())
        })
        .map_err(|file_error| self.read_error(&file_error))?;
        Ok(records)
    }

    fn scan(
        &self,
        parent: &TreePath,
        mut visit: impl FnMut(&str, &[u8]) -> Result<(), StoreFileError>,
    ) -> Result<(), StoreFileError> {
        let range = format::children(parent);
        catch_panics(|| {
            for entry in self.nodes.range(&*range.start..&*range.end)? {
                let (key, value) = entry?;
                if let Some(name) = format::child_name(parent, key.value()) {
                    visit(name, value.value())?;
                }
            }
            Ok(())
        })
    }

    fn read_error(&self, file_error: &StoreFileError) -> Error {
        file_error.to_error(StorageOperation::Read, &self.file)
    }
}
