//! Reads and writes the checksum files `<file>.md5` and `<file>.sha256`.
//!
//! They have the format of `md5sum` and `sha256sum`, as written by diskimage-builder and read by Nodepool.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::digest::Digests;
use crate::files::{self, AttemptExt as _, Result};

const MD5_DIGITS: usize = 32;
const SHA256_DIGITS: usize = 64;

fn checksum_path(path: &Path, kind: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(kind);
    name.into()
}

/// Reads the checksum files of `path`.
pub(crate) fn read(path: &Path) -> Result<Digests> {
    Ok(Digests {
        md5: read_one(&checksum_path(path, "md5"), MD5_DIGITS)?,
        sha256: read_one(&checksum_path(path, "sha256"), SHA256_DIGITS)?,
    })
}

/// Returns `None` if the file does not exist or contains no digest.
fn read_one(path: &Path, digits: usize) -> Result<Option<Box<str>>> {
    let mut file = match files::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = vec![0; digits];
    match file.read_exact(&mut text) {
        Ok(()) if text.iter().all(u8::is_ascii_hexdigit) => {
            text.make_ascii_lowercase();
            Ok(String::from_utf8(text).ok().map(Into::into))
        }
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(error).attempt("read", path)
        }
        _ => {
            tracing::warn!(path = %path.display(), "ignoring invalid checksum file");
            Ok(None)
        }
    }
}

/// Writes the checksum files of `path` atomically, and removes those whose digest is unknown.
pub(crate) fn write(path: &Path, digests: &Digests) -> Result<()> {
    for (kind, digest) in [("md5", &digests.md5), ("sha256", &digests.sha256)] {
        let target = checksum_path(path, kind);
        match digest {
            Some(digest) => {
                let line = format!("{digest}  {}\n", path.display());
                files::write_atomic(&target, line.as_bytes())?;
            }
            None => files::remove_file(&target)?,
        }
    }
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    files::remove_file(&checksum_path(path, "md5"))?;
    files::remove_file(&checksum_path(path, "sha256"))
}
