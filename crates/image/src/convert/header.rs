//! What the header of a disk says, looked at before `qemu-img` may.
//!
//! A qcow2 or vmdk file can name other files, of which it is only a part. From a source that is not trusted such a
//! name is an attempt to read this host's files, and in a repository it can only be a mistake: an image is one file.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::Format;
use crate::files::{self, FileError, Try as _};

/// A disk that is not to be opened.
#[derive(Debug, thiserror::Error)]
pub enum BadHeader {
    #[error("{} is no {format} file: its first bytes are others", path.display())]
    Magic { path: PathBuf, format: Format },
    #[error("{} {flaw}: make it again as one complete file", path.display())]
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
/// Where QEMU reads the text part of a vmdk file, and how much of it.
const VMDK_TEXT: (u64, usize) = (0x200, 20 * 512);

/// Looks at the header of an image file and returns the size of the disk, where that is easily known. Blocks.
///
/// A file that is not of its format, is encrypted, or is only complete with other files is an error.
pub fn inspect(path: &Path, format: &Format) -> Result<Option<u64>, BadHeader> {
    let file = files::open_regular(path)?;
    let read = |at: u64, length: usize| -> Result<Header, BadHeader> {
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
        Ok(Header(bytes))
    };
    let verdict = match format.as_str() {
        "raw" => Ok(Some(file.metadata().attempt("look at", path)?.len())),
        "qcow2" => qcow2(&read(0, QCOW2_HEADER)?),
        "vmdk" => vmdk(&read(0, 64)?, &read(VMDK_TEXT.0, VMDK_TEXT.1)?),
        "vhdx" if read(0, 8)?.starts_with(b"vhdxfile") => Ok(None),
        "vhdx" => Err(Verdict::Magic),
        _ => Ok(None),
    };
    verdict.map_err(|verdict| match verdict {
        Verdict::Magic => BadHeader::Magic {
            path: path.to_owned(),
            format: format.clone(),
        },
        Verdict::Unsafe(flaw) => BadHeader::Unsafe {
            path: path.to_owned(),
            flaw,
        },
    })
}

enum Verdict {
    Magic,
    Unsafe(&'static str),
}

/// The beginning of a file, with zeros behind its end.
struct Header(Vec<u8>);

impl Header {
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

fn qcow2(header: &Header) -> Result<Option<u64>, Verdict> {
    let version = u32::from_be_bytes(header.bytes(4));
    if !header.starts_with(b"QFI\xfb") || !(2..=3).contains(&version) {
        return Err(Verdict::Magic);
    }
    if u64::from_be_bytes(header.bytes(8)) != 0 || u32::from_be_bytes(header.bytes(16)) != 0 {
        return Err(Verdict::Unsafe("is based on another file"));
    }
    if u32::from_be_bytes(header.bytes(32)) != 0 {
        return Err(Verdict::Unsafe("is encrypted"));
    }
    if version == 3 {
        let features = u64::from_be_bytes(header.bytes(72));
        if features & QCOW2_EXTERNAL_DATA != 0 {
            return Err(Verdict::Unsafe("has its data in another file"));
        }
        if features & (QCOW2_DIRTY | QCOW2_CORRUPT) != 0 {
            return Err(Verdict::Unsafe("was not closed properly or is damaged"));
        }
        if features & !QCOW2_KNOWN != 0 {
            return Err(Verdict::Unsafe("has features that are not known here"));
        }
    }
    Ok(Some(u64::from_be_bytes(header.bytes(24))))
}

fn vmdk(header: &Header, text: &Header) -> Result<Option<u64>, Verdict> {
    if !header.starts_with(b"KDMV") {
        return Err(Verdict::Magic);
    }
    // Without a capacity, QEMU takes the text part for a list of files.
    let capacity = u64::from_le_bytes(header.bytes(12));
    if capacity == 0 {
        return Err(Verdict::Unsafe("has its data in other files"));
    }
    let hint = b"parentfilenamehint";
    let names_parent = text
        .0
        .windows(hint.len())
        .any(|window| window.eq_ignore_ascii_case(hint));
    if names_parent {
        return Err(Verdict::Unsafe("is based on another file"));
    }
    Ok(Some(capacity.saturating_mul(SECTOR)))
}
