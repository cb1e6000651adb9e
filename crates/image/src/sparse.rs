//! Sparse files: reading that skips holes, and writing that creates holes and computes digests.
//!
//! Everything here blocks.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::digest::{Digests, Hasher};
use crate::files::{self, AttemptExt as _, FileError};

const CHUNK: usize = 1024 * 1024;
/// Blocks of this size that contain only zeros become holes.
const BLOCK: usize = 4096;

/// A contiguous part of a file.
pub(crate) enum Extent<'a> {
    Data(&'a [u8]),
    /// A hole of this many bytes.
    Hole(u64),
}

/// Reads a file from start to end and passes its extents to `with`.
pub(crate) fn read(
    file: &File,
    mut with: impl FnMut(Extent<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < end {
        let data = next_data(file, at, end)?;
        if data > at {
            with(Extent::Hole(data - at))?;
            at = data;
            continue;
        }
        let hole = next_hole(file, at, end)?;
        while at < hole {
            let wanted = usize::try_from(hole - at).map_or(CHUNK, |left| left.min(CHUNK));
            let (piece, _) = buffer.split_at_mut(wanted);
            let got = file.read_at(piece, at)?;
            let (got_bytes, _) = piece.split_at(got);
            if got == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "file was truncated while being read",
                ));
            }
            with(Extent::Data(got_bytes))?;
            at += got as u64;
        }
    }
    Ok(())
}

/// Returns the offset of the next data at or after `at`, or `end` if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.min(end)),
        Err(Errno::NXIO) => Ok(end),
        // File systems without support for holes.
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

/// Writes a new file, with holes for blocks of zeros, and computes its digests.
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

    /// Returns the number of bytes written, including holes.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// Appends a hole of `length` bytes.
    pub fn hole(&mut self, length: u64) {
        self.hasher.zeros(length);
        self.at += length;
    }

    /// Syncs the file to disk and returns it with its digests.
    pub fn finish(self) -> io::Result<(File, Digests)> {
        self.file.set_len(self.at)?;
        self.file.sync_all()?;
        Ok((self.file, self.hasher.finish()?))
    }
}

impl Write for SparseWriter {
    /// Writes all of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            // The first block is shorter if needed to align the others.
            let into_block = usize::try_from(self.at % BLOCK as u64).unwrap_or(0);
            let (run, zero) = uniform_run(rest, BLOCK - into_block);
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

/// Returns the length of the leading run of blocks that are all zero or all non-zero, and whether they are zero.
fn uniform_run(bytes: &[u8], first_block: usize) -> (usize, bool) {
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let (first, rest) = bytes.split_at(first_block.min(bytes.len()));
    let zero = is_zero(first);
    let uniform = rest
        .chunks(BLOCK)
        .take_while(|block| is_zero(block) == zero)
        .map(<[u8]>::len)
        .sum::<usize>();
    (first.len() + uniform, zero)
}

/// Copies a file, preserving holes, syncs it to disk and returns its digests. Removes the copy on error.
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
        Extent::Data(bytes) => writer.write_all(bytes),
        Extent::Hole(length) => {
            writer.hole(length);
            Ok(())
        }
    })?;
    let (_, digests) = writer.finish()?;
    Ok(digests)
}
