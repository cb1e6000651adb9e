//! [`Draft`]: an image that is being built.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodeyard_model::{ImageName, now, with_causes};

use super::{Error, Repository, RepositoryInner, recover};
use crate::budget::Reservation;
use crate::digest::{self, DigestMismatch, Digests};
use crate::files::{self, AttemptExt as _, FileError};
use crate::layout::BaseName;
use crate::manifest::{ImageFailure, ImageFile, Manifest, ManifestState};
use crate::{Format, ImageId, checksum};

/// Parameters of [`Repository::create_draft`].
#[derive(Debug, Clone)]
pub struct DraftRequest {
    pub image: ImageName,
    pub id: ImageId,
    /// The id of the installation that manages the image.
    pub managed: Option<Box<str>>,
    /// The estimated size in bytes; by default derived from earlier builds of the image.
    pub need: Option<u64>,
}

/// An error committing a [`Draft`].
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error("no image formats were requested")]
    Nothing,
    #[error("the build did not create {}", path.display())]
    Missing { path: PathBuf },
    #[error("the build created an empty file, {}", path.display())]
    Empty { path: PathBuf },
    #[error("{} does not match its checksum file", path.display())]
    DigestMismatch {
        path: PathBuf,
        #[source]
        source: DigestMismatch,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// An image that is being built. Becomes an image by [`commit`](Self::commit); otherwise, also when it is dropped or
/// the process is killed, a failed image without files. All methods block except those that return paths.
#[derive(Debug)]
pub struct Draft {
    inner: Arc<RepositoryInner>,
    base: BaseName,
    manifest: Arc<Manifest>,
    /// Digests that were computed while writing.
    digests: BTreeMap<Format, Digests>,
    /// `None` once the draft has ended.
    reservation: Option<Reservation>,
}

impl Repository {
    /// Creates a draft. Replaces an earlier build with the same id that failed.
    pub fn create_draft(&self, begin: DraftRequest) -> Result<Draft, Error> {
        let inner = &self.inner;
        let DraftRequest {
            image,
            id,
            managed,
            need,
        } = begin;
        let base = BaseName::new(&image, &id)?;
        let change_guard = inner.lock_changes();
        let earlier = self.get(&id);
        if let Some(known) = &earlier
            && known.state != ManifestState::Failed
        {
            let state = known.state;
            return Err(Error::Exists { id, state });
        }
        let again = earlier.as_ref().is_some_and(|known| known.image == image);
        if !again && inner.is_occupied(&base, &id)? {
            let base = base.as_str().to_owned();
            return Err(Error::FilesExist { base });
        }

        let layout = &inner.layout;
        let need = need.unwrap_or_else(|| self.estimate_build(&image));
        let scratch = layout.scratch_of(&id);
        let reservation =
            inner
                .budget
                .reserve(layout, need, scratch.clone(), Some(base.clone()))?;

        let builder = (inner.builder.clone(), inner.builder_id.clone());
        let manifest = Manifest::new(image, id, managed, builder, ManifestState::Building, now());
        files::write_atomic(&layout.draft(&manifest.id), &manifest.to_json())?;
        // From here on dropping the draft cleans up, also when a step below fails.
        let manifest = Arc::new(manifest);
        inner.write_index(|index| index.insert(manifest.id.clone(), Arc::clone(&manifest)));
        let draft = Draft {
            inner: Arc::clone(inner),
            base,
            manifest,
            digests: BTreeMap::new(),
            reservation: Some(reservation),
        };
        drop(change_guard);
        draft.clear(earlier.as_deref())?;
        files::create_dir(&scratch)?;
        files::create_dir(&layout.manifest_dir(&draft.base))?;
        Ok(draft)
    }
}

impl RepositoryInner {
    /// Returns whether files or records of this name exist. They are not ours to remove.
    fn is_occupied(&self, base: &BaseName, id: &ImageId) -> Result<bool, FileError> {
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

    /// Returns the path that build programs write to, without the extension: `<images-dir>/<image>-<id>`.
    pub fn output(&self) -> PathBuf {
        self.inner.layout.base(&self.base)
    }

    /// Returns the path where the file of a format must be before [`commit`](Self::commit).
    pub fn path(&self, format: &Format) -> PathBuf {
        self.inner.layout.file(&self.base, format)
    }

    /// Returns a directory for work files on the same file system. It is removed when the draft ends.
    pub fn scratch(&self) -> PathBuf {
        self.inner.layout.scratch_of(self.id())
    }

    /// Returns the directory of incomplete downloads for images of this name. It outlives the draft.
    pub fn downloads(&self) -> PathBuf {
        self.inner.layout.downloads().join(self.image().as_str())
    }

    /// Stores an additional file with the manifest.
    pub fn attach(&self, name: &str, content: &[u8]) -> Result<(), FileError> {
        let dir = self.inner.layout.manifest_dir(&self.base);
        files::write_atomic(&dir.join(name), content)
    }

    /// Moves a finished file from [`scratch`](Self::scratch) to its final path. `digests` may be given if they were
    /// computed while writing.
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

    /// Completes the image with the files in these formats; other files are removed with the image.
    ///
    /// Digests that are not known yet are computed and compared with existing checksum files. On error the image is
    /// failed with that reason.
    pub fn commit(mut self, formats: &[Format]) -> Result<Arc<Manifest>, CommitError> {
        let result = self
            .check_files(formats)
            .and_then(|files| Ok(self.publish(files)?));
        if let Err(error) = &result {
            self.finish_failed(ImageFailure::new(with_causes(error)));
        }
        result
    }

    /// Ends the build as failed and removes its files.
    pub fn fail(mut self, failure: ImageFailure) {
        self.finish_failed(failure);
    }

    fn check_files(&self, formats: &[Format]) -> Result<BTreeMap<Format, ImageFile>, CommitError> {
        if formats.is_empty() {
            return Err(CommitError::Nothing);
        }
        let mut files = BTreeMap::new();
        for format in formats {
            let path = self.path(format);
            let file = hash_file(&path, self.digests.get(format).cloned())?;
            checksum::write(&path, &file.digests)?;
            files.insert(format.clone(), file);
        }
        Ok(files)
    }

    fn publish(
        &mut self,
        image_files: BTreeMap<Format, ImageFile>,
    ) -> Result<Arc<Manifest>, FileError> {
        let inner = Arc::clone(&self.inner);
        let _changing = inner.lock_changes();
        let mut manifest = Manifest::clone(&self.manifest);
        manifest.state = ManifestState::Ready;
        manifest.since = now();
        manifest.files = image_files;
        let manifest = inner.store_manifest(&self.base, manifest)?;
        self.reservation = None;
        self.remove_record();
        Ok(manifest)
    }

    /// Removes the draft record and the work files. Leftovers are removed at the next start.
    fn remove_record(&self) {
        let layout = &self.inner.layout;
        let removed = files::remove_file(&layout.draft(self.id()))
            .and_then(|()| files::remove_tree(&self.scratch()));
        if let Err(error) = removed {
            tracing::warn!(
                image_id = %self.id(),
                error = &error as &dyn std::error::Error,
                "failed to remove work files; retrying at next start"
            );
        }
    }

    fn finish_failed(&mut self, failure: ImageFailure) {
        if self.reservation.take().is_none() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let _changing = inner.lock_changes();
        let manifest = Manifest::clone(&self.manifest).failed(failure, now());
        let store = || inner.store_manifest(&self.base, manifest.clone());
        let stored = store();
        let removed = recover::remove_files(&inner.layout, &self.base);
        // On a full disk the manifest can be written only after the files are removed.
        match removed.and(stored.or_else(|_| store())) {
            Ok(_) => self.remove_record(),
            Err(error) => {
                // The draft record is kept, so that the next start retries.
                tracing::error!(
                    image_id = %self.id(),
                    error = &error as &dyn std::error::Error,
                    "failed to delete image files; retrying at next start"
                );
                inner.write_index(|index| index.insert(manifest.id.clone(), Arc::new(manifest)));
            }
        }
    }

    /// Removes files of an earlier attempt.
    fn clear(&self, earlier: Option<&Manifest>) -> Result<(), FileError> {
        let inner = &self.inner;
        if let Some(earlier) = earlier
            && let Ok(base) = BaseName::new(&earlier.image, &earlier.id)
        {
            files::remove_tree(&inner.layout.manifest_dir(&base))?;
        }
        files::remove_tree(&inner.layout.manifest_dir(&self.base))?;
        files::remove_tree(&self.scratch())?;
        recover::remove_files(&inner.layout, &self.base)?;
        // It would be applied to the new image.
        files::remove_file(&inner.layout.deletion(self.id()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.finish_failed(ImageFailure::new(ImageFailure::INTERRUPTED));
    }
}

/// Syncs a new file and returns its size and digests, which are computed unless known. Checksum files that exist must
/// match.
pub(crate) fn hash_file(path: &Path, known: Option<Digests>) -> Result<ImageFile, CommitError> {
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = path.to_owned();
            return Err(CommitError::Missing { path });
        }
        Err(error) => return Err(error.into()),
    };
    file.sync_all().attempt("sync", path)?;
    let meta = file.metadata().attempt("inspect", path)?;
    if meta.len() == 0 {
        let path = path.to_owned();
        return Err(CommitError::Empty { path });
    }
    let promised = checksum::read(path)?;
    let digests = match known {
        Some(known) => known,
        None => digest::digest(path)?,
    };
    digests
        .check(&promised)
        .map_err(|source| CommitError::DigestMismatch {
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
