//! File operations with descriptive errors, and atomic writes.
//!
//! All functions block.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

#[cfg(test)]
pub(crate) mod faults;

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    pub(crate) fn new(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

pub(crate) type Result<T> = std::result::Result<T, FileError>;

/// Adds the action and the path to an I/O error.
pub(crate) trait AttemptExt<T> {
    fn attempt(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> AttemptExt<T> for std::result::Result<T, E> {
    fn attempt(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| FileError::new(action, path, source))
    }
}

/// Called before each change so that tests can inject faults.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "fails only in tests")]
fn inject_fault() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::inject_fault;

/// Opens a regular file for reading. Fails for links, directories and devices.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .attempt("open", path)?;
    if file.metadata().attempt("inspect", path)?.is_file() {
        Ok(file)
    } else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        Err(FileError::new("use", path, source))
    }
}

/// Replaces the content of a file atomically and durably.
pub(crate) fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        inject_fault()?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().attempt("write", &temporary)?;
    rename(&temporary, path)
}

/// Renames a synced file durably.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    inject_fault()
        .and_then(|()| fs::rename(from, to))
        .attempt("move a finished file to", to)?;
    match to.parent() {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Syncs a directory, which makes creations, renames and removals in it durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .attempt("sync", dir)
}

/// Removes a file. Succeeds if it does not exist.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match inject_fault().and_then(|()| fs::remove_file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.attempt("remove", path),
    }
}

/// Removes a directory recursively. Succeeds if it does not exist; links are not followed.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(meta) if meta.is_dir() => inject_fault()
            .and_then(|()| fs::remove_dir_all(path))
            .attempt("remove", path),
        _ => remove_file(path),
    }
}

pub(crate) fn create_dir(path: &Path) -> Result<()> {
    inject_fault()
        .and_then(|()| fs::create_dir_all(path))
        .attempt("create", path)
}

/// Lists the names in a directory with their types, without following links. Names that are not UTF-8 are skipped.
pub(crate) fn list(dir: &Path) -> Result<Vec<(String, fs::FileType)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).attempt("list", dir)? {
        let entry = entry.attempt("list", dir)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        match entry.file_type() {
            Ok(kind) => names.push((name, kind)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::new("inspect", &entry.path(), error)),
        }
    }
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}
