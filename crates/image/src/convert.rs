//! Converts images to other formats with `qemu-img`.
//!
//! Both formats are always passed explicitly: if QEMU guessed the format, a crafted disk could refer to other files of
//! this host. For the same reason a source whose header names another file is rejected ([`header`]). The new file is
//! created in a temporary directory, synced, hashed, and then moved to its final path.

mod header;
mod qemu_img;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;

pub use header::{InvalidHeader, inspect};

use crate::files;
use crate::layout::{BaseName, Layout};
use crate::manifest::ImageFile;
use crate::repository::{CommitError, Error, Repository, RepositoryInner, hash_file};
use crate::{Format, ImageId};

/// The assumed expansion of a compressed source.
const MAX_EXPANSION: u64 = 4;
/// The assumed size of format metadata.
const OVERHEAD: u64 = 16 << 20;

/// The format to convert to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionTarget {
    pub format: Format,
    pub compression: DiskCompression,
}

/// The compression of the new file, if its format supports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskCompression {
    /// Readable by every QEMU that supports the format.
    #[default]
    None,
    /// Readable by every QEMU (qcow2 version 2), but slow to create.
    Zlib,
    /// As small and several times faster; requires QEMU 5.1. Formats without zstd use zlib.
    Zstd,
}

/// How to run `qemu-img`.
#[derive(Debug, Clone)]
pub struct Converter {
    /// A path, or a name to be found in PATH.
    pub program: PathBuf,
    pub timeout: Duration,
}

impl Default for Converter {
    fn default() -> Self {
        Self {
            program: "qemu-img".into(),
            timeout: Duration::from_secs(2 * 60 * 60),
        }
    }
}

/// An error converting an image.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(
        "{format} files cannot be created by conversion, only {}: let the build create them",
        convertible()
    )]
    NotConvertible { format: Format },
    #[error(
        "image {id} has no file that can be converted, only {}: let the build create {wanted}, raw or qcow2",
        if present.is_empty() { "none at all" } else { present }
    )]
    NoSource {
        id: ImageId,
        wanted: Format,
        present: String,
    },
    #[error(transparent)]
    Header(#[from] InvalidHeader),
    #[error("failed to start {}: install it (Debian: qemu-utils), or let the build create the format", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} timed out after {} s and was killed: is the disk overloaded?", program.display(), timeout.as_secs())]
    TimedOut { program: PathBuf, timeout: Duration },
    #[error("{} failed ({status}): {output}", program.display())]
    Failed {
        program: PathBuf,
        status: std::process::ExitStatus,
        output: String,
    },
    #[error("failed to wait for {}", program.display())]
    WaitFailed {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the conversion did not create an image")]
    Result(#[from] CommitError),
    #[error(transparent)]
    Repository(#[from] Error),
    #[error("the conversion was stopped because this program is shutting down")]
    ShuttingDown,
}

impl From<files::FileError> for ConvertError {
    fn from(error: files::FileError) -> Self {
        Self::Repository(error.into())
    }
}

fn convertible() -> String {
    Format::convertible().collect::<Vec<_>>().join(", ")
}

impl Repository {
    /// Converts an image from its best source to another format. If the format exists or another caller is already
    /// converting to it, returns that file.
    ///
    /// `progress` is called with percentages. Dropping the future kills all processes of the conversion.
    pub async fn convert(
        &self,
        id: &ImageId,
        target: &ConversionTarget,
        converter: &Converter,
        progress: impl FnMut(f32) + Send,
    ) -> Result<ImageFile, ConvertError> {
        let inner = self.inner();
        let lock = inner.conversion_lock(id);
        let _guard = lock.lock().await;

        let manifest = inner.get_ready(id)?;
        if let Some(file) = manifest.files.get(&target.format) {
            return Ok(file.clone());
        }
        if target.format.qemu_driver().is_none() {
            let format = target.format.clone();
            return Err(ConvertError::NotConvertible { format });
        }
        let source = Format::best_source(manifest.files.keys());
        let Some((format, file)) = source.and_then(|format| manifest.files.get_key_value(format))
        else {
            let present: Vec<_> = manifest.files.keys().map(Format::as_str).collect();
            return Err(ConvertError::NoSource {
                id: id.clone(),
                wanted: target.format.clone(),
                present: present.join(", "),
            });
        };
        let base = BaseName::new(&manifest.image, id).map_err(Error::from)?;
        let source = ConversionSource {
            path: inner.layout.file(&base, format),
            format: format.clone(),
            allocated: file.allocated,
        };

        let started = {
            let (inner, source, format) =
                (Arc::clone(inner), source.clone(), target.format.clone());
            blocking(move || ConversionDir::start(&inner, &source, &format)).await?
        };
        qemu_img::convert(converter, &source, &started.file, target, progress).await?;
        let (inner, id, format) = (Arc::clone(inner), id.clone(), target.format.clone());
        blocking(move || {
            let file = hash_file(&started.file, None)?;
            inner.add_file(&id, &format, &started.file, &file)?;
            Ok(file)
        })
        .await
    }
}

/// A file to convert.
#[derive(Debug, Clone)]
struct ConversionSource {
    path: PathBuf,
    format: Format,
    allocated: u64,
}

/// The temporary directory of a conversion, removed when dropped.
struct ConversionDir {
    dir: PathBuf,
    file: PathBuf,
    _room: crate::budget::Reservation,
}

impl ConversionDir {
    fn start(
        inner: &RepositoryInner,
        source: &ConversionSource,
        wanted: &Format,
    ) -> Result<Self, ConvertError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let virtual_size = inspect(&source.path, &source.format)?;
        let needed = estimate(source, virtual_size);
        let layout: &Layout = &inner.layout;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = layout.converting().join(number.to_string());
        let room = inner
            .budget
            .reserve(layout, needed, dir.clone(), None)
            .map_err(Error::from)?;
        let work = Self {
            file: dir.join(wanted.as_str()),
            dir,
            _room: room,
        };
        files::create_dir(&work.dir)?;
        Ok(work)
    }
}

impl Drop for ConversionDir {
    fn drop(&mut self) {
        if let Err(error) = files::remove_tree(&self.dir) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to remove work files of conversion; retrying at next start"
            );
        }
    }
}

/// Estimates the size of the new file, which is at most the virtual size.
fn estimate(source: &ConversionSource, virtual_size: Option<u64>) -> u64 {
    let data = match source.format.as_str() {
        "qcow2" | "vmdk" => source.allocated.saturating_mul(MAX_EXPANSION),
        _ => source.allocated,
    };
    let data = virtual_size.map_or(data, |size| size.min(data));
    data.saturating_add(data / 100).saturating_add(OVERHEAD)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ConvertError> + Send + 'static,
) -> Result<T, ConvertError> {
    spawn_blocking(work)
        .await
        .map_err(|_| ConvertError::ShuttingDown)?
}
