//! Checks the header of a disk image before `qemu-img` opens it.
//!
//! A qcow2 or vmdk file can refer to other files. In an untrusted image this is an attempt to read files of this host.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::Format;
use crate::files::{self, AttemptExt as _, FileError};

/// A disk image that must not be opened.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHeader {
    #[error("{} is not a {format} file: wrong magic number", path.display())]
    Magic { path: PathBuf, format: Format },
    #[error("{} {flaw}: recreate it as one complete file", path.display())]
    Unsafe { path: PathBuf, flaw: &'static str },
    #[error(transparent)]
    File(#[from] FileError),
}

const QCOW2_HEADER: usize = 104;
const QCOW2_DIRTY: u64 = 1;
const QCOW2_CORRUPT: u64 = 1 << 1;
const QCOW2_EXTERNAL_DATA: u64 = 1 << 2;
const QCOW2_KNOWN: u64 = (1 << 5) - 1;

const SECTOR: u64 = 512;
/// Offset and length of the text part of a vmdk file that QEMU reads.
const VMDK_TEXT: (u64, usize) = (0x200, 20 * 512);

/// Checks the header of an image file and returns the virtual size, if it is in the header. Blocks.
///
/// Fails if the file is of another format, is encrypted, or refers to other files.
pub fn inspect(path: &Path, format: &Format) -> Result<Option<u64>, InvalidHeader> {
    let file = files::open_regular(path)?;
    let read = |at: u64, length: usize| -> Result<HeaderBytes, InvalidHeader> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some((_, rest)) = bytes.split_at_mut_checked(filled)
            && !rest.is_empty()
        {
            match file.read_at(rest, at + filled as u64) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::new("read", path, error).into()),
            }
        }
        Ok(HeaderBytes(bytes))
    };
    let problem = match format.as_str() {
        "raw" => Ok(Some(file.metadata().attempt("inspect", path)?.len())),
        "qcow2" => qcow2(&read(0, QCOW2_HEADER)?),
        "vmdk" => vmdk(&read(0, 64)?, &read(VMDK_TEXT.0, VMDK_TEXT.1)?),
        "vhdx" if read(0, 8)?.starts_with(b"vhdxfile") => Ok(None),
        "vhdx" => Err(HeaderProblem::Magic),
        _ => Ok(None),
    };
    problem.map_err(|problem| match problem {
        HeaderProblem::Magic => InvalidHeader::Magic {
            path: path.to_owned(),
            format: format.clone(),
        },
        HeaderProblem::Unsafe(flaw) => InvalidHeader::Unsafe {
            path: path.to_owned(),
            flaw,
        },
    })
}

enum HeaderProblem {
    Magic,
    Unsafe(&'static str),
}

/// The start of a file, padded with zeros.
struct HeaderBytes(Vec<u8>);

impl HeaderBytes {
    fn starts_with(&self, magic: &[u8]) -> bool {
        self.0.starts_with(magic)
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .copied()
            .unwrap_or([0; N])
    }
}

fn qcow2(header: &HeaderBytes) -> Result<Option<u64>, HeaderProblem> {
    let version = u32::from_be_bytes(header.bytes(4));
    if !header.starts_with(b"QFI\xfb") || !(2..=3).contains(&version) {
        return Err(HeaderProblem::Magic);
    }
    if u64::from_be_bytes(header.bytes(8)) != 0 || u32::from_be_bytes(header.bytes(16)) != 0 {
        return Err(HeaderProblem::Unsafe("is based on another file"));
    }
    if u32::from_be_bytes(header.bytes(32)) != 0 {
        return Err(HeaderProblem::Unsafe("is encrypted"));
    }
    if version == 3 {
        let features = u64::from_be_bytes(header.bytes(72));
        if features & QCOW2_EXTERNAL_DATA != 0 {
            return Err(HeaderProblem::Unsafe("has its data in another file"));
        }
        if features & (QCOW2_DIRTY | QCOW2_CORRUPT) != 0 {
            return Err(HeaderProblem::Unsafe(
                "was not closed properly or is damaged",
            ));
        }
        if features & !QCOW2_KNOWN != 0 {
            return Err(HeaderProblem::Unsafe("has unsupported features"));
        }
    }
    Ok(Some(u64::from_be_bytes(header.bytes(24))))
}

fn vmdk(header: &HeaderBytes, text: &HeaderBytes) -> Result<Option<u64>, HeaderProblem> {
    if !header.starts_with(b"KDMV") {
        return Err(HeaderProblem::Magic);
    }
    // Without a capacity, QEMU reads the text part as a list of files.
    let capacity = u64::from_le_bytes(header.bytes(12));
    if capacity == 0 {
        return Err(HeaderProblem::Unsafe("has its data in other files"));
    }
    let hint = b"parentfilenamehint";
    let names_parent = text
        .0
        .windows(hint.len())
        .any(|window| window.eq_ignore_ascii_case(hint));
    if names_parent {
        return Err(HeaderProblem::Unsafe("is based on another file"));
    }
    Ok(Some(capacity.saturating_mul(SECTOR)))
}
