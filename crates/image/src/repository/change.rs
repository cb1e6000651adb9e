//! Changes of images that are at rest: removal, uploads, verification.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nodeyard_model::{ProviderName, UploadId};

use super::{Error, Repository, Shared, now, recover};
use crate::digest::digest;
use crate::files::{self, Try as _};
use crate::layout::Base;
use crate::manifest::{ImageFile, Manifest, Outcome, State, Upload};
use crate::{Format, ImageId, checksum};

impl Repository {
    /// Removes an image with all its files. One that is not here is none already.
    pub fn delete(&self, id: &ImageId) -> Result<(), Error> {
        let shared = &self.shared;
        let _changing = shared.changing();
        let manifest = match shared.at_rest(id) {
            Ok(manifest) => manifest,
            Err(Error::Unknown { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let base = Base::new(&manifest.image, id)?;
        files::write_atomic(&shared.layout.deletion(id), &manifest.to_json())?;
        // The record is there, so the image is gone whatever happens now.
        shared.write_index(|index| index.remove(id));
        recover::remove_image(&shared.layout, &base, id)?;
        Ok(())
    }

    /// Removes the files of some formats; the rest of the image stays. Files that are not here are none already.
    pub fn delete_formats(&self, id: &ImageId, formats: &[Format]) -> Result<(), Error> {
        let shared = &self.shared;
        let removing = shared.update(id, |manifest| {
            manifest.files.retain(|format, _| !formats.contains(format));
            manifest.removing = formats.to_vec();
        })?;
        let base = Base::new(&removing.image, id)?;
        for format in formats {
            recover::remove_format(&shared.layout.file(&base, format))?;
        }
        files::sync_dir(shared.layout.dir())?;
        shared.update(id, |manifest| manifest.removing.clear())?;
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
        })?;
        Ok(())
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
        self.shared.update(id, uploads)?;
        Ok(())
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
        let mut manifest = Manifest::clone(&*self.ready(id)?);
        let base = Base::new(&manifest.image, id)?;
        let path = self.layout.file(&base, format);
        files::rename(made, &path)?;
        checksum::write(&path, &file.digests)?;
        manifest.files.insert(format.clone(), file.clone());
        self.store(&base, manifest)?;
        Ok(())
    }

    /// Changes the manifest of an image that is ready.
    fn update(
        &self,
        id: &ImageId,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<Arc<Manifest>, Error> {
        let _changing = self.changing();
        let mut manifest = Manifest::clone(&*self.ready(id)?);
        change(&mut manifest);
        let base = Base::new(&manifest.image, id)?;
        Ok(self.store(&base, manifest)?)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Building => "being built",
            Self::Ready => "ready",
            Self::Failed => "a failure",
        })
    }
}
