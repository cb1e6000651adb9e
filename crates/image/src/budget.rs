//! Reserves disk space, so that work that would exceed the limits is rejected before it starts.
//!
//! Work reserves its estimated size. Of a reservation only the part that is not yet written counts, since written data
//! is already part of the disk usage.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::files::{self, AttemptExt as _, FileError};
use crate::layout::{BaseName, Layout};

/// The estimated size of a build, relative to the largest earlier one.
const MARGIN_PERCENT: u64 = 125;

/// Limits on the disk space of images, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// Space to keep free on the file system of images-dir.
    pub keep_free: u64,
    /// Maximum size of images-dir.
    pub max_used: Option<u64>,
    /// Estimated size of the first build of an image.
    pub first_build: u64,
}

impl Default for DiskLimits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Self {
            keep_free: GIB,
            max_used: None,
            first_build: GIB,
        }
    }
}

/// A number of bytes, displayed with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Work that would exceed the disk limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InsufficientSpace {
    #[error(
        "{needed} are needed in {}, where {free} are free, of which running work has reserved {reserved} and \
         {keep_free} are kept free: delete images, or lower images-dir-reserve",
        dir.display()
    )]
    Disk {
        dir: PathBuf,
        needed: ByteSize,
        free: ByteSize,
        reserved: ByteSize,
        keep_free: ByteSize,
    },
    #[error(
        "{needed} are needed in {}, which may hold {limit} and holds {used}, with {reserved} reserved by running \
         work: delete images, or raise images-dir-limit",
        dir.display()
    )]
    Directory {
        dir: PathBuf,
        needed: ByteSize,
        limit: ByteSize,
        used: ByteSize,
        reserved: ByteSize,
    },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BudgetError {
    #[error(transparent)]
    InsufficientSpace(#[from] InsufficientSpace),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The disk limits and the reservations of running work.
#[derive(Debug)]
pub(crate) struct Budget {
    state: Mutex<BudgetState>,
}

#[derive(Debug)]
struct BudgetState {
    limits: DiskLimits,
    reserved: BTreeMap<u64, ReservedSpace>,
    next: u64,
}

#[derive(Debug)]
struct ReservedSpace {
    bytes: u64,
    /// A directory or file whose content counts as written.
    scratch: PathBuf,
    /// The base name of image files that count as written.
    base: Option<BaseName>,
}

/// Disk space that is reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    number: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.lock().reserved.remove(&self.number);
    }
}

impl Budget {
    pub(crate) fn new(limits: DiskLimits) -> Self {
        Self {
            state: Mutex::new(BudgetState {
                limits,
                reserved: BTreeMap::new(),
                next: 0,
            }),
        }
    }

    pub(crate) fn set_limits(&self, limits: DiskLimits) {
        self.lock().limits = limits;
    }

    /// Estimates the size of an image's next build from its largest earlier one.
    pub(crate) fn estimate_build(&self, largest: Option<u64>) -> u64 {
        match largest {
            Some(bytes) if bytes > 0 => (bytes / 100).saturating_mul(MARGIN_PERCENT),
            _ => self.lock().limits.first_build,
        }
    }

    /// Reserves space for work that writes to `scratch` and to the image files of `base`.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        layout: &Layout,
        needed: u64,
        scratch: PathBuf,
        base: Option<BaseName>,
    ) -> Result<Reservation, BudgetError> {
        let reserved = ReservedSpace {
            bytes: needed,
            scratch,
            base,
        };
        self.add_reservation(layout, needed, reserved)
    }

    /// Reserves space for a file that will grow to `size`.
    pub(crate) fn reserve_file(
        self: &Arc<Self>,
        layout: &Layout,
        path: &Path,
        size: u64,
    ) -> Result<Reservation, BudgetError> {
        let reserved = ReservedSpace {
            bytes: size,
            scratch: path.to_owned(),
            base: None,
        };
        self.add_reservation(layout, size.saturating_sub(allocated(path)), reserved)
    }

    fn add_reservation(
        self: &Arc<Self>,
        layout: &Layout,
        needed: u64,
        reserved: ReservedSpace,
    ) -> Result<Reservation, BudgetError> {
        let mut state = self.lock();
        state.check(layout, needed)?;
        let number = state.next;
        state.next += 1;
        state.reserved.insert(number, reserved);
        Ok(Reservation {
            budget: Arc::clone(self),
            number,
        })
    }

    /// Checks whether `needed` more bytes fit within the limits.
    pub(crate) fn check(&self, layout: &Layout, needed: u64) -> Result<(), BudgetError> {
        self.lock().check(layout, needed)
    }

    /// Returns how many more bytes fit within the limits.
    pub(crate) fn available(&self, layout: &Layout) -> Result<u64, FileError> {
        let state = self.lock();
        Ok(state.space(layout)?.available(&state.limits))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    fn space(&self, layout: &Layout) -> Result<Space, FileError> {
        let dir = layout.dir();
        let usage = DiskUsage::of(layout)?;
        let reserved: u64 = self
            .reserved
            .values()
            .map(|reserved| {
                let written = reserved
                    .base
                    .as_ref()
                    .map_or(0, |base| usage.of_base(base))
                    .saturating_add(tree_size(&reserved.scratch));
                reserved.bytes.saturating_sub(written)
            })
            .fold(0, u64::saturating_add);

        let disk = rustix::fs::statvfs(dir).attempt("read the free space of", dir)?;
        Ok(Space {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            used: usage.total,
            reserved,
        })
    }

    fn check(&self, layout: &Layout, needed: u64) -> Result<(), BudgetError> {
        let dir = layout.dir();
        let Space {
            free,
            used,
            reserved,
        } = self.space(layout)?;
        let DiskLimits {
            keep_free,
            max_used,
            ..
        } = self.limits;
        if needed.saturating_add(reserved).saturating_add(keep_free) > free {
            let dir = dir.to_owned();
            return Err(InsufficientSpace::Disk {
                dir,
                needed: ByteSize(needed),
                free: ByteSize(free),
                reserved: ByteSize(reserved),
                keep_free: ByteSize(keep_free),
            }
            .into());
        }
        if let Some(limit) = max_used
            && needed.saturating_add(reserved).saturating_add(used) > limit
        {
            let dir = dir.to_owned();
            return Err(InsufficientSpace::Directory {
                dir,
                needed: ByteSize(needed),
                limit: ByteSize(limit),
                used: ByteSize(used),
                reserved: ByteSize(reserved),
            }
            .into());
        }
        Ok(())
    }
}

/// The space on the file system of images-dir, in bytes.
struct Space {
    free: u64,
    /// By images-dir.
    used: u64,
    /// By running work, and not written yet.
    reserved: u64,
}

impl Space {
    fn available(&self, limits: &DiskLimits) -> u64 {
        let on_disk = self.free.saturating_sub(limits.keep_free);
        let in_dir = limits
            .max_used
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.used));
        on_disk.min(in_dir).saturating_sub(self.reserved)
    }
}

/// The current disk usage of images-dir.
struct DiskUsage {
    total: u64,
    files: Vec<(String, u64)>,
}

impl DiskUsage {
    fn of(layout: &Layout) -> Result<Self, FileError> {
        let dir = layout.dir();
        let mut files = Vec::new();
        let mut total =
            tree_size(&layout.nodeyard_dir()).saturating_add(tree_size(&layout.downloads()));
        for (name, kind) in files::list(dir)? {
            if !kind.is_file() {
                continue;
            }
            let bytes = allocated(&dir.join(&name));
            total = total.saturating_add(bytes);
            files.push((name, bytes));
        }
        Ok(Self { total, files })
    }

    fn of_base(&self, base: &BaseName) -> u64 {
        self.files
            .iter()
            .filter(|(name, _)| base.owns(name))
            .map(|(_, bytes)| bytes)
            .sum()
    }
}

/// Returns the allocated size of a file; 0 if it does not exist.
fn allocated(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |meta| meta.blocks().saturating_mul(512))
}

/// Returns the allocated size of a file or directory tree.
fn tree_size(path: &Path) -> u64 {
    fn add(dir: &Path) -> io::Result<u64> {
        let mut total = 0;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            total += if entry.file_type()?.is_dir() {
                tree_size(&entry.path())
            } else {
                allocated(&entry.path())
            };
        }
        Ok(total)
    }
    // Files may be removed concurrently.
    add(path).unwrap_or_else(|_| match path.is_dir() {
        true => 0,
        false => allocated(path),
    })
}
