//! The disk budget: work that would fill the disk is refused before it starts.
//!
//! Work reserves what it is estimated to need. What it has already written is on disk and no longer free, so only the
//! rest of its reservation counts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::files::{self, FileError, Try as _};
use crate::layout::{Base, Layout};

/// How much larger than the last one a build may become.
const MARGIN_PERCENT: u64 = 125;

/// How much of the disk images may use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Stays free on the file system of images-dir.
    pub keep_free: u64,
    /// All of images-dir together.
    pub most_used: Option<u64>,
    /// What a build is taken to need when nothing is known of its image.
    pub first_build: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Self {
            keep_free: GIB,
            most_used: None,
            first_build: GIB,
        }
    }
}

/// A number of bytes as people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
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

/// Work that does not fit on the disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    #[error(
        "{needed} are needed in {}, where {free} are free, of which running work has reserved {reserved} and \
         {keep_free} are kept free: delete images, or lower images-dir-reserve",
        dir.display()
    )]
    Disk {
        dir: PathBuf,
        needed: Bytes,
        free: Bytes,
        reserved: Bytes,
        keep_free: Bytes,
    },
    #[error(
        "{needed} are needed in {}, which may hold {limit} and holds {used}, with {reserved} reserved by running \
         work: delete images, or raise images-dir-limit",
        dir.display()
    )]
    Directory {
        dir: PathBuf,
        needed: Bytes,
        limit: Bytes,
        used: Bytes,
        reserved: Bytes,
    },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BudgetError {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    File(#[from] FileError),
}

/// What may be used, and what running work has reserved of it.
#[derive(Debug)]
pub(crate) struct Budget {
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    limits: Limits,
    reserved: BTreeMap<u64, Reserved>,
    next: u64,
}

#[derive(Debug)]
struct Reserved {
    bytes: u64,
    /// What is in this directory, or file, counts as written; so do the files in the image's own place if one is
    /// being made.
    scratch: PathBuf,
    base: Option<Base>,
}

/// Room that is kept for one piece of work until this is dropped.
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
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            books: Mutex::new(Books {
                limits,
                reserved: BTreeMap::new(),
                next: 0,
            }),
        }
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        self.lock().limits = limits;
    }

    /// What the next build of an image may need, from the largest one that is known.
    pub(crate) fn estimate_build(&self, largest: Option<u64>) -> u64 {
        match largest {
            Some(bytes) if bytes > 0 => (bytes / 100).saturating_mul(MARGIN_PERCENT),
            _ => self.lock().limits.first_build,
        }
    }

    /// Keeps room for work that writes into `scratch`, and to the files of `base` if it makes an image.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        layout: &Layout,
        needed: u64,
        scratch: PathBuf,
        base: Option<Base>,
    ) -> Result<Reservation, BudgetError> {
        let reserved = Reserved {
            bytes: needed,
            scratch,
            base,
        };
        self.enter(layout, needed, reserved)
    }

    /// Keeps room for a file that will have this size and may be there in part.
    pub(crate) fn reserve_file(
        self: &Arc<Self>,
        layout: &Layout,
        path: &Path,
        size: u64,
    ) -> Result<Reservation, BudgetError> {
        let reserved = Reserved {
            bytes: size,
            scratch: path.to_owned(),
            base: None,
        };
        self.enter(layout, size.saturating_sub(allocated(path)), reserved)
    }

    fn enter(
        self: &Arc<Self>,
        layout: &Layout,
        needed: u64,
        reserved: Reserved,
    ) -> Result<Reservation, BudgetError> {
        let mut books = self.lock();
        books.check(layout, needed)?;
        let number = books.next;
        books.next += 1;
        books.reserved.insert(number, reserved);
        Ok(Reservation {
            budget: Arc::clone(self),
            number,
        })
    }

    /// Whether so much more may be written.
    pub(crate) fn check(&self, layout: &Layout, needed: u64) -> Result<(), BudgetError> {
        self.lock().check(layout, needed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn check(&self, layout: &Layout, needed: u64) -> Result<(), BudgetError> {
        let dir = layout.dir();
        let usage = Usage::of(layout)?;
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

        let disk = rustix::fs::statvfs(dir).attempt("ask for the free space of", dir)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let Limits {
            keep_free,
            most_used,
            ..
        } = self.limits;
        if needed.saturating_add(reserved).saturating_add(keep_free) > free {
            let dir = dir.to_owned();
            return Err(NoRoom::Disk {
                dir,
                needed: Bytes(needed),
                free: Bytes(free),
                reserved: Bytes(reserved),
                keep_free: Bytes(keep_free),
            }
            .into());
        }
        if let Some(limit) = most_used
            && needed.saturating_add(reserved).saturating_add(usage.total) > limit
        {
            let dir = dir.to_owned();
            return Err(NoRoom::Directory {
                dir,
                needed: Bytes(needed),
                limit: Bytes(limit),
                used: Bytes(usage.total),
                reserved: Bytes(reserved),
            }
            .into());
        }
        Ok(())
    }
}

/// What is on disk now.
struct Usage {
    total: u64,
    files: Vec<(String, u64)>,
}

impl Usage {
    fn of(layout: &Layout) -> Result<Self, FileError> {
        let dir = layout.dir();
        let mut files = Vec::new();
        let mut total = tree_size(&layout.own()).saturating_add(tree_size(&layout.downloads()));
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

    fn of_base(&self, base: &Base) -> u64 {
        self.files
            .iter()
            .filter(|(name, _)| base.owns(name))
            .map(|(_, bytes)| bytes)
            .sum()
    }
}

/// On disk; nothing for what is gone meanwhile.
fn allocated(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |meta| meta.blocks().saturating_mul(512))
}

/// Of a directory with all that is in it, or of a file.
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
    // Files come and go while work is under way.
    add(path).unwrap_or_else(|_| match path.is_dir() {
        true => 0,
        false => allocated(path),
    })
}
