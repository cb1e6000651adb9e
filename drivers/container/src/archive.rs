//! The small archives in which files travel into and out of a container.

use std::io::{self, Read};

use bytes::Bytes;
use tar::{Archive, Builder, EntryType, Header};

/// What a file or directory belongs to and who may use it.
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

/// An archive that is made in memory. Paths are absolute.
pub(crate) struct Package(Builder<Vec<u8>>);

impl Package {
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

/// The first file of an archive, up to `limit` bytes of it.
pub(crate) fn first_file(archive: &[u8], limit: u64) -> io::Result<Option<Vec<u8>>> {
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

/// The names of what is in an archive, without directories.
pub(crate) fn names(archive: &[u8]) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let entry = entry?;
        if let Some(name) = entry.path()?.file_name() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
