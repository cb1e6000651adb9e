//! Files, with errors that say what was tried on which, and with writes that a crash leaves whole or undone.
//!
//! Everything here blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

#[cfg(test)]
pub(crate) mod faults;

/// Something that could not be done to a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
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

/// Says on what an operation failed.
pub(crate) trait Try<T> {
    fn attempt(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Try<T> for std::result::Result<T, E> {
    fn attempt(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| FileError::new(action, path, source))
    }
}

/// Called before each change, so that tests can fail any of them.
#[cfg(not(test))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "only tests have something to fail"
)]
fn hazard() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::hazard;

/// Opens a file for reading; a link, a directory or a device is an error.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .attempt("open", path)?;
    if file.metadata().attempt("look at", path)?.is_file() {
        Ok(file)
    } else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        Err(FileError::new("use", path, source))
    }
}

/// Replaces the content of a file: after a crash it has the old one or the new one.
pub(crate) fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let aside = PathBuf::from(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&aside)?;
        hazard()?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().attempt("write", &aside)?;
    rename(&aside, path)
}

/// Moves a file, which must be on disk already, and makes the move last.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    hazard()
        .and_then(|()| fs::rename(from, to))
        .attempt("move a finished file to", to)?;
    match to.parent() {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Makes new, moved and removed names of a directory last.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .attempt("sync", dir)
}

/// Removes a file. It may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match hazard().and_then(|()| fs::remove_file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.attempt("remove", path),
    }
}

/// Removes a directory with all that is in it. It may be gone already; a link is removed, not followed.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(meta) if meta.is_dir() => hazard()
            .and_then(|()| fs::remove_dir_all(path))
            .attempt("remove", path),
        _ => remove_file(path),
    }
}

pub(crate) fn create_dir(path: &Path) -> Result<()> {
    hazard()
        .and_then(|()| fs::create_dir_all(path))
        .attempt("create", path)
}

/// The names in a directory that are text, with their types; links are not followed. Names that are not UTF-8 are
/// nobody's here.
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
            Err(error) => return Err(FileError::new("look at", &entry.path(), error)),
        }
    }
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}
