//! An image that is being made.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodeyard_model::{ImageName, now, with_causes};

use super::{Error, Repository, Shared, recover};
use crate::budget::Reservation;
use crate::digest::{self, Digests, Mismatch};
use crate::files::{self, FileError, Try as _};
use crate::layout::Base;
use crate::manifest::{Failure, ImageFile, Manifest, State};
use crate::{Format, ImageId, checksum};

/// What to begin.
#[derive(Debug, Clone)]
pub struct Begin {
    pub image: ImageName,
    pub id: ImageId,
    /// The installation that looks after the image.
    pub managed: Option<Box<str>>,
    /// How many bytes it will need; by default what earlier builds of the image needed, and some more.
    pub need: Option<u64>,
}

/// Why an image that was made is none.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error("no format was asked for, so there is nothing to keep")]
    Nothing,
    #[error("the build ended without making {}", path.display())]
    Missing { path: PathBuf },
    #[error("the build left an empty file, {}", path.display())]
    Empty { path: PathBuf },
    #[error("{} is not what its maker says", path.display())]
    Mismatch {
        path: PathBuf,
        #[source]
        source: Mismatch,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// An image that is being made. Ends as an image by [`commit`](Self::commit), else as a failure without files; so does
/// one that is dropped, or whose process is killed. Its methods block, those that only return paths excepted.
#[derive(Debug)]
pub struct Draft {
    shared: Arc<Shared>,
    base: Base,
    manifest: Arc<Manifest>,
    /// Of files that this program wrote.
    digests: BTreeMap<Format, Digests>,
    /// None when the draft has ended.
    room: Option<Reservation>,
}

impl Repository {
    /// Begins to make an image. An earlier attempt that failed is forgotten.
    pub fn begin(&self, begin: Begin) -> Result<Draft, Error> {
        let shared = &self.shared;
        let Begin {
            image,
            id,
            managed,
            need,
        } = begin;
        let base = Base::new(&image, &id)?;
        let changing = shared.changing();
        let earlier = self.get(&id);
        if let Some(known) = &earlier
            && known.state != State::Failed
        {
            let state = known.state;
            return Err(Error::Exists { id, state });
        }
        let again = earlier.as_ref().is_some_and(|known| known.image == image);
        if !again && shared.is_taken(&base, &id)? {
            let base = base.as_str().to_owned();
            return Err(Error::Taken { base });
        }

        let layout = &shared.layout;
        let need = need.unwrap_or_else(|| shared.budget.estimate_build(shared.largest(&image)));
        let scratch = layout.scratch_of(&id);
        let room = shared
            .budget
            .reserve(layout, need, scratch.clone(), Some(base.clone()))?;

        let builder = (shared.builder.clone(), shared.builder_id.clone());
        let manifest = Manifest::new(image, id, managed, builder, State::Building, now());
        files::write_atomic(&layout.draft(&manifest.id), &manifest.to_json())?;
        // From here on a draft is responsible for what is on disk, also when a step below fails.
        let manifest = Arc::new(manifest);
        shared.write_index(|index| index.insert(manifest.id.clone(), Arc::clone(&manifest)));
        let draft = Draft {
            shared: Arc::clone(shared),
            base,
            manifest,
            digests: BTreeMap::new(),
            room: Some(room),
        };
        drop(changing);
        draft.clear(earlier.as_deref())?;
        files::create_dir(&scratch)?;
        files::create_dir(&layout.manifest_dir(&draft.base))?;
        Ok(draft)
    }
}

impl Shared {
    /// Whether something is in the place of a new image. What it is may not be known; it is not for us to remove.
    fn is_taken(&self, base: &Base, id: &ImageId) -> Result<bool, FileError> {
        let records = [
            self.layout.manifest(base),
            self.layout.draft(id),
            self.layout.deletion(id),
        ];
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        let names = files::list(self.layout.dir())?;
        Ok(records.iter().any(is_there) || names.iter().any(|(name, _)| base.owns(name)))
    }
}

impl Draft {
    pub fn id(&self) -> &ImageId {
        &self.manifest.id
    }

    pub fn image(&self) -> &ImageName {
        &self.manifest.image
    }

    /// `<images-dir>/<image>-<id>`, which programs are told to write to, with a dot and the format behind it.
    pub fn output(&self) -> PathBuf {
        self.shared.layout.base(&self.base)
    }

    /// Where the file of a format has to be before [`commit`](Self::commit).
    pub fn path(&self, format: &Format) -> PathBuf {
        self.shared.layout.file(&self.base, format)
    }

    /// A directory for work files, on the same file system; it is removed with all that is in it when the draft ends.
    pub fn scratch(&self) -> PathBuf {
        self.shared.layout.scratch_of(self.id())
    }

    /// Where downloads for images of this name are kept while they are not complete; it outlives the draft.
    pub fn downloads(&self) -> PathBuf {
        self.shared.layout.downloads().join(self.image().as_str())
    }

    /// Keeps a further file with the manifest, for as long as the image is there.
    pub fn keep(&self, name: &str, content: &[u8]) -> Result<(), FileError> {
        let dir = self.shared.layout.manifest_dir(&self.base);
        files::write_atomic(&dir.join(name), content)
    }

    /// Moves a finished file from [`scratch`](Self::scratch) to its place. `digests` are those of its bytes, if they
    /// were computed while it was written.
    pub fn install(
        &mut self,
        format: &Format,
        file: &Path,
        digests: Option<Digests>,
    ) -> Result<(), FileError> {
        let opened = files::open_regular(file)?;
        opened.sync_all().attempt("sync", file)?;
        files::rename(file, &self.path(format))?;
        match digests {
            Some(digests) => self.digests.insert(format.clone(), digests),
            None => self.digests.remove(format),
        };
        Ok(())
    }

    /// Makes an image of the files in these formats; others stay beside it and are removed with it.
    ///
    /// Digests that are not known yet are read from the files that diskimage-builder writes, or computed. If this
    /// returns an error, the draft has failed with that reason.
    pub fn commit(mut self, formats: &[Format]) -> Result<Arc<Manifest>, CommitError> {
        let result = self
            .admit(formats)
            .and_then(|files| Ok(self.publish(files)?));
        if let Err(error) = &result {
            self.end(Failure::new(with_causes(error)));
        }
        result
    }

    /// Ends without an image; the files go.
    pub fn fail(mut self, failure: Failure) {
        self.end(failure);
    }

    fn admit(&self, formats: &[Format]) -> Result<BTreeMap<Format, ImageFile>, CommitError> {
        if formats.is_empty() {
            return Err(CommitError::Nothing);
        }
        let mut files = BTreeMap::new();
        for format in formats {
            let path = self.path(format);
            let file = measure(&path, self.digests.get(format).cloned())?;
            checksum::write(&path, &file.digests)?;
            files.insert(format.clone(), file);
        }
        Ok(files)
    }

    fn publish(
        &mut self,
        image_files: BTreeMap<Format, ImageFile>,
    ) -> Result<Arc<Manifest>, FileError> {
        let shared = Arc::clone(&self.shared);
        let _changing = shared.changing();
        let mut manifest = Manifest::clone(&self.manifest);
        manifest.state = State::Ready;
        manifest.since = now();
        manifest.files = image_files;
        let manifest = shared.store(&self.base, manifest)?;
        self.room = None;
        self.forget();
        Ok(manifest)
    }

    /// The image is at rest, one way or the other; what is left over is removed at the next start at the latest.
    fn forget(&self) {
        let layout = &self.shared.layout;
        let tidied = files::remove_file(&layout.draft(self.id()))
            .and_then(|()| files::remove_tree(&self.scratch()));
        if let Err(error) = tidied {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "image {}: work files stay until the next start",
                self.id()
            );
        }
    }

    fn end(&mut self, failure: Failure) {
        if self.room.take().is_none() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let _changing = shared.changing();
        let manifest = Manifest::clone(&self.manifest).failed(failure, now());
        let store = || shared.store(&self.base, manifest.clone());
        let stored = store();
        let removed = recover::remove_files(&shared.layout, &self.base);
        // On a full disk the manifest finds room only when the files are gone.
        match removed.and(stored.or_else(|_| store())) {
            Ok(_) => self.forget(),
            Err(error) => {
                // The record of the draft stays, so that the next start removes what this could not.
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "image {}: its files are removed at the next start",
                    self.id()
                );
                shared.write_index(|index| index.insert(manifest.id.clone(), Arc::new(manifest)));
            }
        }
    }

    /// Removes what is in the place of the image, and what an earlier attempt left.
    fn clear(&self, earlier: Option<&Manifest>) -> Result<(), FileError> {
        let shared = &self.shared;
        if let Some(earlier) = earlier
            && let Ok(base) = Base::new(&earlier.image, &earlier.id)
        {
            files::remove_tree(&shared.layout.manifest_dir(&base))?;
        }
        files::remove_tree(&shared.layout.manifest_dir(&self.base))?;
        files::remove_tree(&self.scratch())?;
        recover::remove_files(&shared.layout, &self.base)?;
        // It would be taken for one of the image that is made now.
        files::remove_file(&shared.layout.deletion(self.id()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.end(Failure::new(Failure::INTERRUPTED));
    }
}

/// Looks at a file that was made, puts it on disk and settles its digests: those that are known, else those of its bytes.
/// Those that its maker has written beside it have to be the same.
pub(crate) fn measure(path: &Path, known: Option<Digests>) -> Result<ImageFile, CommitError> {
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = path.to_owned();
            return Err(CommitError::Missing { path });
        }
        Err(error) => return Err(error.into()),
    };
    file.sync_all().attempt("sync", path)?;
    let meta = file.metadata().attempt("look at", path)?;
    if meta.len() == 0 {
        let path = path.to_owned();
        return Err(CommitError::Empty { path });
    }
    let said = checksum::read(path)?;
    let digests = match known {
        Some(known) => known,
        None => digest::digest(path)?,
    };
    digests
        .check(&said)
        .map_err(|source| CommitError::Mismatch {
            path: path.to_owned(),
            source,
        })?;
    Ok(ImageFile {
        size: meta.len(),
        allocated: meta.blocks().saturating_mul(512),
        digests,
        verified: Some(now()),
    })
}
