//! The output of an export: standard output, or a file that only its owner can read.
//!
//! Records contain credentials of machines. The file is written under a temporary name and renamed when it is complete
//! and on disk, so a failed export keeps the previous file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

pub(crate) enum ExportFile {
    Draft {
        file: NamedTempFile,
        path: PathBuf,
    },
    /// Standard output, a pipe or a device.
    Stream(Box<dyn Write>),
}

impl ExportFile {
    /// Opens a file; `-` is standard output.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Box::new(io::stdout().lock())));
        }
        Self::create(path).with_context(|| cannot_write(path))
    }

    fn create(path: &Path) -> io::Result<Self> {
        // Follows symbolic links.
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
            path => path?,
        };
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            let stream = OpenOptions::new().write(true).open(&path)?;
            return Ok(Self::Stream(Box::new(stream)));
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        // Created with mode 0600.
        let file = NamedTempFile::new_in(directory)?;
        Ok(Self::Draft { file, path })
    }

    /// Completes the export.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        let Self::Draft { file, path } = self else {
            return Ok(());
        };
        let keep = || {
            file.as_file().sync_all()?;
            file.persist(&path)?;
            // Makes the rename durable.
            let directory = path.parent().unwrap_or(Path::new("/"));
            File::open(directory)?.sync_all()
        };
        keep().with_context(|| cannot_write(&path))
    }
}

impl Write for ExportFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Draft { file, .. } => file.write(data),
            Self::Stream(stream) => stream.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Draft { file, .. } => file.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("failed to write {}", path.display())
}
