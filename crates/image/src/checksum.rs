//! The digests beside an image file, in the files that diskimage-builder writes and Nodepool reads.
//!
//! `<file>.md5` and `<file>.sha256` hold what `md5sum` and `sha256sum` print: the digest in hexadecimal digits, two
//! spaces and the path.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::digest::Digests;
use crate::files::{self, Result, Try as _};

const MD5_DIGITS: usize = 32;
const SHA256_DIGITS: usize = 64;

fn beside(path: &Path, kind: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(kind);
    name.into()
}

/// The digests that are written beside `path`.
pub(crate) fn read(path: &Path) -> Result<Digests> {
    Ok(Digests {
        md5: read_one(&beside(path, "md5"), MD5_DIGITS)?,
        sha256: read_one(&beside(path, "sha256"), SHA256_DIGITS)?,
    })
}

/// None if there is no such file, or something else in it.
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
            tracing::warn!(
                "{} holds no digest and is passed over; remove it",
                path.display()
            );
            Ok(None)
        }
    }
}

/// Writes what is known of `digests` beside `path`. They are derived, so a crash may lose them, but never leave half.
pub(crate) fn write(path: &Path, digests: &Digests) -> Result<()> {
    for (kind, digest) in [("md5", &digests.md5), ("sha256", &digests.sha256)] {
        let target = beside(path, kind);
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
    files::remove_file(&beside(path, "md5"))?;
    files::remove_file(&beside(path, "sha256"))
}
