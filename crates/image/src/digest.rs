//! Computes MD5 and SHA-256 of image files in one pass.
//!
//! A [`Hasher`] computes each digest on its own thread. Holes are hashed without being read or copied.

mod hasher;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use hasher::Hasher;

use crate::files::{self, AttemptExt as _, FileError};
use crate::sparse;

/// Computed or expected digests, in lower-case hexadecimal digits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Digests {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Box<str>>,
}

/// A computed digest that differs from the promised one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} mismatch: computed {found}, promised {promised}: the file is damaged or a different one; fetch it again"
)]
pub struct DigestMismatch {
    pub kind: &'static str,
    pub found: Box<str>,
    pub promised: Box<str>,
}

impl Digests {
    pub fn is_empty(&self) -> bool {
        self.md5.is_none() && self.sha256.is_none()
    }

    /// Compares with promised digests. Kinds that either side lacks are skipped.
    pub fn check(&self, promised: &Self) -> Result<(), DigestMismatch> {
        let pairs = [
            ("MD5 digest", &self.md5, &promised.md5),
            ("SHA-256 digest", &self.sha256, &promised.sha256),
        ];
        for (kind, found, promised) in pairs {
            if let (Some(found), Some(promised)) = (found, promised)
                && !found.eq_ignore_ascii_case(promised)
            {
                return Err(DigestMismatch {
                    kind,
                    found: found.clone(),
                    promised: promised.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Computes the digests of a file. Blocks.
pub fn digest(path: &Path) -> Result<Digests, FileError> {
    let file = files::open_regular(path)?;
    digest_file(&file).attempt("read", path)
}

fn digest_file(file: &File) -> io::Result<Digests> {
    let mut hasher = Hasher::new()?;
    sparse::read(file, |piece| {
        match piece {
            sparse::Extent::Data(bytes) => hasher.update(bytes),
            sparse::Extent::Hole(length) => hasher.zeros(length),
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
