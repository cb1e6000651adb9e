//! Small archives that carry files into and out of a container.

use std::io::{self, Read};

use bytes::Bytes;
use tar::{Archive, Builder, EntryType, Header};

/// Owner and permissions of a file or directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ownership {
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mode: u32,
}

impl Ownership {
    pub(crate) const fn root(mode: u32) -> Self {
        Self {
            uid: 0,
            gid: 0,
            mode,
        }
    }
}

/// Builds an archive in memory from absolute paths.
pub(crate) struct ArchiveBuilder(Builder<Vec<u8>>);

impl ArchiveBuilder {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(crate) fn directory(&mut self, path: &str, owner: Ownership) -> io::Result<()> {
        self.add(&format!("{path}/"), EntryType::Directory, owner, &[])
    }

    pub(crate) fn file(&mut self, path: &str, owner: Ownership, content: &[u8]) -> io::Result<()> {
        self.add(path, EntryType::Regular, owner, content)
    }

    fn add(
        &mut self,
        path: &str,
        kind: EntryType,
        owner: Ownership,
        content: &[u8],
    ) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_uid(owner.uid);
        header.set_gid(owner.gid);
        header.set_mode(owner.mode);
        header.set_size(content.len() as u64);
        let path = path.trim_start_matches('/');
        self.0.append_data(&mut header, path, content)
    }

    pub(crate) fn finish(self) -> io::Result<Bytes> {
        Ok(self.0.into_inner()?.into())
    }
}

/// Returns up to `limit` bytes of the first file of an archive.
pub(crate) fn read_first_file(archive: &[u8], limit: u64) -> io::Result<Option<Vec<u8>>> {
    for entry in Archive::new(archive).entries()? {
        let entry = entry?;
        if entry.header().entry_type().is_file() {
            let mut content = Vec::new();
            entry.take(limit).read_to_end(&mut content)?;
            return Ok(Some(content));
        }
    }
    Ok(None)
}

/// Returns the names of all entries of an archive, without their directories.
pub(crate) fn file_names(archive: &[u8]) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let entry = entry?;
        if let Some(name) = entry.path()?.file_name() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
