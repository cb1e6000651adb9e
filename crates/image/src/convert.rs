//! Another format of an image, made by `qemu-img`.
//!
//! Both formats are always named: a program that guesses the format of a disk can be made to believe, by the bytes in
//! it, that the disk is made of other files of this host. For the same reason a source whose header names another
//! file is refused ([`header`]).
//!
//! The new file is made aside, put on disk, hashed while it is still in memory, and only then moved to its place and
//! noted in the manifest.

mod header;
mod qemu_img;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;

pub use header::{BadHeader, inspect};

use crate::files;
use crate::layout::{Base, Layout};
use crate::manifest::ImageFile;
use crate::repository::{CommitError, Error, Repository, Shared, measure};
use crate::{Format, ImageId};

/// What a compressed source may grow to in a format without compression, as a multiple.
const UNPACKED: u64 = 4;
/// Tables of formats that have them.
const OVERHEAD: u64 = 16 << 20;

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub format: Format,
    pub compression: Compression,
}

/// How the new file is compressed, where its format can be. The best one that everybody who reads the file takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Read by every QEMU there is, as far as it can read the format at all.
    #[default]
    None,
    /// Small, for every QEMU there is (qcow2 version 2), and slow to make.
    Zlib,
    /// As small and several times faster, for readers with QEMU 5.1 or later; where a format cannot have it, zlib.
    Zstd,
}

/// How conversions are run.
#[derive(Debug, Clone)]
pub struct Converter {
    /// A path, or a name to look for in PATH.
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

/// Why there is no file in the wanted format.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(
        "{format} files cannot be made by conversion, only {}: let the build make them",
        convertible()
    )]
    NotADisk { format: Format },
    #[error(
        "image {id} has no file that could be converted, only {}: let the build make {wanted}, raw or qcow2",
        if present.is_empty() { "none at all" } else { present }
    )]
    NoSource {
        id: ImageId,
        wanted: Format,
        present: String,
    },
    #[error(transparent)]
    Header(#[from] BadHeader),
    #[error("cannot start {}: install it (Debian: qemu-utils), or let the build make the format", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} did not end within {} s and was stopped: is the disk overloaded?", program.display(), timeout.as_secs())]
    TimedOut { program: PathBuf, timeout: Duration },
    #[error("{} failed ({status}): {output}", program.display())]
    Failed {
        program: PathBuf,
        status: std::process::ExitStatus,
        output: String,
    },
    #[error("lost sight of {}", program.display())]
    Lost {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the conversion made no image")]
    Result(#[from] CommitError),
    #[error(transparent)]
    Repository(#[from] Error),
    #[error("the conversion was stopped, since this program is ending")]
    Ending,
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
    /// Makes the file of another format, from the best one that is here. If the format is here already, or another
    /// caller is making it, that is the result.
    ///
    /// `progress` gets percents. Dropping the future ends the conversion with all its processes.
    pub async fn convert(
        &self,
        id: &ImageId,
        target: &Target,
        converter: &Converter,
        progress: impl FnMut(f32) + Send,
    ) -> Result<ImageFile, ConvertError> {
        let shared = self.shared();
        let turn = shared.conversions(id);
        let _turn = turn.lock().await;

        let manifest = shared.ready(id)?;
        if let Some(file) = manifest.files.get(&target.format) {
            return Ok(file.clone());
        }
        if target.format.qemu_driver().is_none() {
            let format = target.format.clone();
            return Err(ConvertError::NotADisk { format });
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
        let base = Base::new(&manifest.image, id).map_err(Error::from)?;
        let source = Source {
            path: shared.layout.file(&base, format),
            format: format.clone(),
            allocated: file.allocated,
        };

        let started = {
            let (shared, source, format) =
                (Arc::clone(shared), source.clone(), target.format.clone());
            blocking(move || Work::start(&shared, &source, &format)).await?
        };
        qemu_img::convert(converter, &source, &started.file, target, progress).await?;
        let (shared, id, format) = (Arc::clone(shared), id.clone(), target.format.clone());
        blocking(move || {
            let file = measure(&started.file, None)?;
            shared.adopt(&id, &format, &started.file, &file)?;
            Ok(file)
        })
        .await
    }
}

/// A file to convert.
#[derive(Debug, Clone)]
struct Source {
    path: PathBuf,
    format: Format,
    allocated: u64,
}

/// The place of a conversion; cleared when it is dropped.
struct Work {
    dir: PathBuf,
    file: PathBuf,
    _room: crate::budget::Reservation,
}

impl Work {
    fn start(shared: &Shared, source: &Source, wanted: &Format) -> Result<Self, ConvertError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let virtual_size = inspect(&source.path, &source.format)?;
        let needed = estimate(source, virtual_size);
        let layout: &Layout = &shared.layout;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = layout.converting().join(number.to_string());
        let room = shared
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

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = files::remove_tree(&self.dir) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "work files of a conversion stay until the next start"
            );
        }
    }
}

/// What the new file may need. No format needs more than the disk has, and none invents data.
fn estimate(source: &Source, virtual_size: Option<u64>) -> u64 {
    let data = match source.format.as_str() {
        "qcow2" | "vmdk" => source.allocated.saturating_mul(UNPACKED),
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
        .map_err(|_| ConvertError::Ending)?
}
