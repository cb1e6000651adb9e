//! Sparse files: reading that skips holes, writing that leaves them, hashing as the bytes go by.
//!
//! Everything here blocks.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::digest::{Digests, Hasher};
use crate::files::{self, FileError, Try as _};

const PIECE: usize = 1024 * 1024;
/// Zeros are looked for, and holes left, in blocks of this size.
const BLOCK: usize = 4096;

/// A part of a file.
pub(crate) enum Piece<'a> {
    Data(&'a [u8]),
    /// As many zero bytes, which are not on disk.
    Hole(u64),
}

/// Reads a file from its beginning to its end, hole by hole.
pub(crate) fn read(
    file: &File,
    mut with: impl FnMut(Piece<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < end {
        let data = next_data(file, at, end)?;
        if data > at {
            with(Piece::Hole(data - at))?;
            at = data;
            continue;
        }
        let hole = next_hole(file, at, end)?;
        while at < hole {
            let wanted = usize::try_from(hole - at).map_or(PIECE, |left| left.min(PIECE));
            let (piece, _) = buffer.split_at_mut(wanted);
            let got = file.read_at(piece, at)?;
            let (got_bytes, _) = piece.split_at(got);
            if got == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter while it was read",
                ));
            }
            with(Piece::Data(got_bytes))?;
            at += got as u64;
        }
    }
    Ok(())
}

/// Where data begins at or after `at`; `end` if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.min(end)),
        Err(Errno::NXIO) => Ok(end),
        // A file system that does not know holes has none.
        Err(Errno::INVAL) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

fn next_hole(file: &File, at: u64, end: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Hole(at)) {
        Ok(hole) => Ok(hole.min(end)),
        Err(Errno::NXIO | Errno::INVAL) => Ok(end),
        Err(error) => Err(error.into()),
    }
}

/// Writes a new file, leaves holes where there are only zeros, and hashes what goes by.
#[derive(Debug)]
pub struct SparseWriter {
    file: File,
    at: u64,
    hasher: Hasher,
}

impl SparseWriter {
    /// `file` must be empty and open for writing.
    pub fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            file,
            at: 0,
            hasher: Hasher::new()?,
        })
    }

    /// How many bytes went by.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// As many zero bytes, without looking at any.
    pub fn hole(&mut self, length: u64) {
        self.hasher.zeros(length);
        self.at += length;
    }

    /// Everything is on disk when this returns.
    pub fn finish(self) -> io::Result<(File, Digests)> {
        self.file.set_len(self.at)?;
        self.file.sync_all()?;
        Ok((self.file, self.hasher.finish()?))
    }
}

impl Write for SparseWriter {
    /// Takes all of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            // The first block may be short, so that the others are those of the file.
            let into_block = usize::try_from(self.at % BLOCK as u64).unwrap_or(0);
            let (run, zero) = zero_run(rest, BLOCK - into_block);
            let (piece, after) = rest.split_at(run);
            if !zero {
                self.file.write_all_at(piece, self.at)?;
            }
            self.at += run as u64;
            rest = after;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many bytes from the start of `bytes` are in blocks that are alike, all zero or all not, and which.
fn zero_run(bytes: &[u8], first_block: usize) -> (usize, bool) {
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let (first, rest) = bytes.split_at(first_block.min(bytes.len()));
    let zero = is_zero(first);
    let alike = rest
        .chunks(BLOCK)
        .take_while(|block| is_zero(block) == zero)
        .map(<[u8]>::len)
        .sum::<usize>();
    (first.len() + alike, zero)
}

/// Copies a file to a new one, holes as holes, and returns its digests. The copy is on disk when this returns, and
/// gone if this fails.
pub fn copy(from: &Path, to: &Path) -> Result<Digests, FileError> {
    let source = files::open_regular(from)?;
    let target = File::create_new(to).attempt("create", to)?;
    let copied = copy_bytes(&source, target).attempt("copy to", to);
    if copied.is_err() {
        files::remove_file(to)?;
    }
    copied
}

fn copy_bytes(source: &File, target: File) -> io::Result<Digests> {
    let mut writer = SparseWriter::new(target)?;
    read(source, |piece| match piece {
        Piece::Data(bytes) => writer.write_all(bytes),
        Piece::Hole(length) => {
            writer.hole(length);
            Ok(())
        }
    })?;
    let (_, digests) = writer.finish()?;
    Ok(digests)
}
