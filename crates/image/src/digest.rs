//! MD5 and SHA-256 of image files, both in one pass.
//!
//! Clouds and older tools ask for MD5, everybody else for SHA-256. A [`Hasher`] computes both while the bytes go by,
//! each on its own thread; what is known to be zero is never read or copied, only counted.

mod hasher;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use hasher::Hasher;

use crate::files::{self, FileError, Try as _};
use crate::sparse;

/// Digests in lower-case hexadecimal digits: those of some bytes, or those that were promised for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Digests {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Box<str>>,
}

/// Bytes that are not the promised ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {kind} is {found}, and {promised} was promised: the file is damaged or another one, get it again"
)]
pub struct Mismatch {
    pub kind: &'static str,
    pub found: Box<str>,
    pub promised: Box<str>,
}

impl Digests {
    pub fn is_empty(&self) -> bool {
        self.md5.is_none() && self.sha256.is_none()
    }

    /// Compares with what was promised, as far as both are known.
    pub fn check(&self, promised: &Self) -> Result<(), Mismatch> {
        let pairs = [
            ("MD5 digest", &self.md5, &promised.md5),
            ("SHA-256 digest", &self.sha256, &promised.sha256),
        ];
        for (kind, found, promised) in pairs {
            if let (Some(found), Some(promised)) = (found, promised)
                && !found.eq_ignore_ascii_case(promised)
            {
                return Err(Mismatch {
                    kind,
                    found: found.clone(),
                    promised: promised.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Reads a file once and returns both digests. Blocks; holes cost no reading.
pub fn digest(path: &Path) -> Result<Digests, FileError> {
    let file = files::open_regular(path)?;
    digest_file(&file).attempt("read", path)
}

fn digest_file(file: &File) -> io::Result<Digests> {
    let mut hasher = Hasher::new()?;
    sparse::read(file, |piece| {
        match piece {
            sparse::Piece::Data(bytes) => hasher.update(bytes),
            sparse::Piece::Hole(length) => hasher.zeros(length),
        }
        Ok(())
    })?;
    hasher.finish()
}

pub(crate) fn to_hex(bytes: &[u8]) -> Box<str> {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _infallible = write!(hex, "{byte:02x}");
    }
    hex.into()
}
