//! Changes of images that are not being built: deletion, uploads, verification.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nodeyard_model::{ProviderName, UploadId};

use super::{Error, Repository, RepositoryInner, now, recover};
use crate::digest::digest;
use crate::files::{self, AttemptExt as _};
use crate::layout::BaseName;
use crate::manifest::{
    ImageFailure, ImageFile, Manifest, ManifestState, ManifestUpload, UploadOutcome,
};
use crate::{Format, ImageId, checksum};

impl Repository {
    /// Deletes an image with all its files. Succeeds if it does not exist. After an error the deletion can be repeated;
    /// the image is then failed, or still ready, possibly with fewer files.
    pub fn delete(&self, id: &ImageId) -> Result<(), Error> {
        let inner = &self.inner;
        let _changing = inner.lock_changes();
        let manifest = match inner.get_not_building(id) {
            Ok(manifest) => manifest,
            Err(Error::Unknown { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let base = BaseName::new(&manifest.image, id)?;
        let (from, record) = (inner.layout.manifest(&base), inner.layout.deletion(id));
        let intended = match files::rename(&from, &record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                files::write_atomic(&record, &manifest.to_json())
            }
            result => result,
        };
        if let Err(error) = &intended {
            // For example on a full disk. Files are removed before their manifest, so a kill leaves an image without
            // some.
            tracing::warn!(
                image_id = %id,
                error = error as &dyn std::error::Error,
                "failed to write deletion record; deleting image without it"
            );
        }
        // Until then the image is visible as failed.
        let deleting =
            Manifest::clone(&manifest).failed(ImageFailure::new("it is being deleted"), now());
        inner.write_index(|index| index.insert(id.clone(), Arc::new(deleting)));
        if let Err(error) = recover::remove_image(&inner.layout, &base, id) {
            let mut left = Manifest::clone(&manifest);
            if intended.is_ok() {
                left = recover::deletion_failed(left, &error);
            } else {
                recover::drop_missing(&inner.layout, &base, &mut left);
            }
            inner.write_index(|index| index.insert(id.clone(), Arc::new(left)));
            return Err(error.into());
        }
        inner.write_index(|index| index.remove(id));
        Ok(())
    }

    /// Retries deletions that failed and returns the images that are deleted now. Blocks.
    pub fn finish_deletions(&self) -> Result<Vec<ImageId>, Error> {
        let mut deleted = Vec::new();
        for (name, _) in files::list(&self.inner.layout.deleting())? {
            let id = name.strip_suffix(".json").and_then(|id| id.parse().ok());
            // Images that are not in the index have an unreadable record.
            let left = id.filter(|id| {
                let left = self.get(id);
                left.is_some_and(|left| left.state == ManifestState::Failed)
            });
            if let Some(id) = left
                && self.delete(&id).is_ok()
            {
                deleted.push(id);
            }
        }
        Ok(deleted)
    }

    /// Deletes the files of some formats. Succeeds for files that do not exist.
    pub fn delete_formats(&self, id: &ImageId, formats: &[Format]) -> Result<(), Error> {
        let inner = &self.inner;
        let _changing = inner.lock_changes();
        let base = BaseName::new(&inner.get_ready(id)?.image, id)?;
        let remaining = |manifest: &mut Manifest| {
            manifest.files.retain(|format, _| !formats.contains(format));
        };
        // The intention is recorded first, so that the next start finishes the deletion after a kill. On a full disk
        // this may fail; then a kill leaves an image without some files.
        let _intended = inner.rewrite(id, |manifest| {
            remaining(manifest);
            manifest.removing = formats.to_vec();
        });
        for format in formats {
            recover::remove_image_file(&inner.layout.file(&base, format))?;
        }
        files::sync_dir(inner.layout.dir())?;
        inner.rewrite(id, |manifest| {
            remaining(manifest);
            manifest.removing.clear();
        })?;
        Ok(())
    }

    /// Records an upload and its outcome. There is one entry per provider and upload id.
    pub fn record_upload(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload_id: Option<UploadId>,
        outcome: UploadOutcome,
    ) -> Result<(), Error> {
        self.inner.update(id, |manifest| {
            let since = now();
            let known = manifest
                .uploads
                .iter_mut()
                .find(|upload| upload.is_for(provider, upload_id));
            match known {
                Some(upload) => (upload.since, upload.outcome) = (since, outcome),
                None => manifest.uploads.push(ManifestUpload {
                    provider: provider.clone(),
                    upload_id,
                    since,
                    outcome,
                }),
            }
        })
    }

    /// Removes the entry of an upload whose image was deleted from the provider.
    pub fn remove_upload(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload_id: Option<UploadId>,
    ) -> Result<(), Error> {
        let uploads = |manifest: &mut Manifest| {
            manifest
                .uploads
                .retain(|upload| !upload.is_for(provider, upload_id));
        };
        self.inner.update(id, uploads)
    }

    /// Compares a file with its digests, or stores them if it had none.
    pub fn verify(&self, id: &ImageId, format: &Format) -> Result<ImageFile, Error> {
        let path = self.path(id, format)?;
        let found = digest(&path)?;
        let meta = std::fs::metadata(&path).attempt("inspect", &path)?;
        let manifest = self.inner.get_ready(id)?;
        if let Some(file) = manifest.files.get(format) {
            found
                .check(&file.digests)
                .map_err(|source| Error::DigestMismatch {
                    path: path.clone(),
                    source,
                })?;
        }
        checksum::write(&path, &found)?;
        let file = ImageFile {
            size: meta.len(),
            allocated: meta.blocks().saturating_mul(512),
            digests: found,
            verified: Some(now()),
        };
        self.inner.update(id, |manifest| {
            manifest.files.insert(format.clone(), file.clone());
        })?;
        Ok(file)
    }
}

impl RepositoryInner {
    /// Moves a new, synced file to its final path and adds it to the manifest.
    pub(crate) fn add_file(
        &self,
        id: &ImageId,
        format: &Format,
        made: &Path,
        file: &ImageFile,
    ) -> Result<(), Error> {
        let _changing = self.lock_changes();
        let manifest = self.get_ready(id)?;
        let path = self
            .layout
            .file(&BaseName::new(&manifest.image, id)?, format);
        files::rename(made, &path)?;
        checksum::write(&path, &file.digests)?;
        self.rewrite(id, |manifest| {
            manifest.files.insert(format.clone(), file.clone());
        })?;
        Ok(())
    }

    /// Changes the manifest of an image that is ready.
    fn update(&self, id: &ImageId, change: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        let _changing = self.lock_changes();
        self.rewrite(id, change).map(drop)
    }

    /// As [`Self::update`], for callers that hold `change_lock`.
    fn rewrite(
        &self,
        id: &ImageId,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<Arc<Manifest>, Error> {
        let mut manifest = Manifest::clone(&*self.get_ready(id)?);
        change(&mut manifest);
        let base = BaseName::new(&manifest.image, id)?;
        Ok(self.store_manifest(&base, manifest)?)
    }
}
