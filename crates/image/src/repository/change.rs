//! Changes of images that are at rest: removal, uploads, verification.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nodeyard_model::{ProviderName, UploadId, now};

use super::{Error, Repository, Shared, recover};
use crate::digest::digest;
use crate::files::{self, Try as _};
use crate::layout::Base;
use crate::manifest::{Failure, ImageFile, Manifest, Outcome, State, Upload};
use crate::{Format, ImageId, checksum};

impl Repository {
    /// Removes an image with all its files. One that is not here is none already. After an error it can be removed
    /// again: it is a failure if its removal has begun, otherwise an image, perhaps with fewer files.
    pub fn delete(&self, id: &ImageId) -> Result<(), Error> {
        let shared = &self.shared;
        let _changing = shared.changing();
        let manifest = match shared.at_rest(id) {
            Ok(manifest) => manifest,
            Err(Error::Unknown { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let base = Base::new(&manifest.image, id)?;
        let (from, record) = (shared.layout.manifest(&base), shared.layout.deletion(id));
        let intended = match files::rename(&from, &record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                files::write_atomic(&record, &manifest.to_json())
            }
            result => result,
        };
        if let Err(error) = &intended {
            // On a full disk, say. The files go before their manifest, so a kill leaves an image that lacks some.
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "image {id}: removed without a record of it"
            );
        }
        // Whoever asks meanwhile does not take it for gone.
        let leaving = Manifest::clone(&manifest).failed(Failure::new("it is being removed"), now());
        shared.write_index(|index| index.insert(id.clone(), Arc::new(leaving)));
        if let Err(error) = recover::remove_image(&shared.layout, &base, id) {
            let mut left = Manifest::clone(&manifest);
            if intended.is_ok() {
                left = recover::undeleted(left, &error);
            } else {
                recover::drop_missing(&shared.layout, &base, &mut left);
            }
            shared.write_index(|index| index.insert(id.clone(), Arc::new(left)));
            return Err(error.into());
        }
        shared.write_index(|index| index.remove(id));
        Ok(())
    }

    /// Goes on with removals that have failed half way, and returns what is gone by now. Blocks.
    pub fn finish_deletions(&self) -> Result<Vec<ImageId>, Error> {
        let mut gone = Vec::new();
        for (name, _) in files::list(&self.shared.layout.deleting())? {
            let id = name.strip_suffix(".json").and_then(|id| id.parse().ok());
            // What is not known has a record that cannot be read.
            let left = id.filter(|id| {
                let left = self.get(id);
                left.is_some_and(|left| left.state == State::Failed)
            });
            if let Some(id) = left
                && self.delete(&id).is_ok()
            {
                gone.push(id);
            }
        }
        Ok(gone)
    }

    /// Removes the files of some formats; the rest of the image stays. Files that are not here are none already.
    pub fn delete_formats(&self, id: &ImageId, formats: &[Format]) -> Result<(), Error> {
        let shared = &self.shared;
        let _changing = shared.changing();
        let base = Base::new(&shared.ready(id)?.image, id)?;
        let remaining = |manifest: &mut Manifest| {
            manifest.files.retain(|format, _| !formats.contains(format));
        };
        // First the intention, so that a start can finish what a killed process began. A full disk may have no room for
        // it before the files are gone; then a kill leaves an image that lacks some.
        let _intended = shared.rewrite(id, |manifest| {
            remaining(manifest);
            manifest.removing = formats.to_vec();
        });
        for format in formats {
            recover::remove_format(&shared.layout.file(&base, format))?;
        }
        files::sync_dir(shared.layout.dir())?;
        shared.rewrite(id, |manifest| {
            remaining(manifest);
            manifest.removing.clear();
        })?;
        Ok(())
    }

    /// Remembers an upload, or what became of it: there is one entry for a provider and upload id.
    pub fn record_upload(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload_id: Option<UploadId>,
        outcome: Outcome,
    ) -> Result<(), Error> {
        self.shared.update(id, |manifest| {
            let since = now();
            let known = manifest
                .uploads
                .iter_mut()
                .find(|upload| upload.is_of(provider, upload_id));
            match known {
                Some(upload) => (upload.since, upload.outcome) = (since, outcome),
                None => manifest.uploads.push(Upload {
                    provider: provider.clone(),
                    upload_id,
                    since,
                    outcome,
                }),
            }
        })
    }

    /// Forgets an upload, since what was uploaded is gone.
    pub fn forget_upload(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload_id: Option<UploadId>,
    ) -> Result<(), Error> {
        let uploads = |manifest: &mut Manifest| {
            manifest
                .uploads
                .retain(|upload| !upload.is_of(provider, upload_id));
        };
        self.shared.update(id, uploads)
    }

    /// Reads a file again and compares it with its digests; one that had none gets them.
    pub fn verify(&self, id: &ImageId, format: &Format) -> Result<ImageFile, Error> {
        let path = self.path(id, format)?;
        let found = digest(&path)?;
        let meta = std::fs::metadata(&path).attempt("look at", &path)?;
        let manifest = self.shared.ready(id)?;
        if let Some(file) = manifest.files.get(format) {
            found
                .check(&file.digests)
                .map_err(|source| Error::Mismatch {
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
        self.shared.update(id, |manifest| {
            manifest.files.insert(format.clone(), file.clone());
        })?;
        Ok(file)
    }
}

impl Shared {
    /// Moves a new file of an image to its place and notes it; `made` is on disk.
    pub(crate) fn adopt(
        &self,
        id: &ImageId,
        format: &Format,
        made: &Path,
        file: &ImageFile,
    ) -> Result<(), Error> {
        let _changing = self.changing();
        let manifest = self.ready(id)?;
        let path = self.layout.file(&Base::new(&manifest.image, id)?, format);
        files::rename(made, &path)?;
        checksum::write(&path, &file.digests)?;
        self.rewrite(id, |manifest| {
            manifest.files.insert(format.clone(), file.clone());
        })?;
        Ok(())
    }

    /// Changes the manifest of an image that is ready.
    fn update(&self, id: &ImageId, change: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        let _changing = self.changing();
        self.rewrite(id, change).map(drop)
    }

    /// As `update`, for a caller that holds `changes`.
    fn rewrite(
        &self,
        id: &ImageId,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<Arc<Manifest>, Error> {
        let mut manifest = Manifest::clone(&*self.ready(id)?);
        change(&mut manifest);
        let base = Base::new(&manifest.image, id)?;
        Ok(self.store(&base, manifest)?)
    }
}
