//! Recovery when a repository is opened.
//!
//! First unfinished deletions and drafts are finished, then manifests are read, then files of Python Nodepool without
//! manifest are added. An unreadable record is logged and kept, and files that may belong to it are ignored.
//!
//! Errors that a full disk or an unremovable file causes do not prevent opening, because only a running worker can free
//! space. The affected images become failed, and their records are kept for the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::FileType;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nodeyard_model::{Timestamp, with_causes};

use super::now;
use crate::files::{self, AttemptExt as _, FileError};
use crate::layout::{BaseName, Layout, MANIFEST, MANIFEST_DIR, parse_python_name};
use crate::manifest::{ImageFailure, ImageFile, Manifest, ManifestFormatError, ManifestState};
use crate::{ImageId, checksum};

/// The maximum size of a manifest file.
const MAX_MANIFEST_LEN: u64 = 4 << 20;

type ManifestIndex = BTreeMap<ImageId, Arc<Manifest>>;

/// An error reading a manifest.
#[derive(Debug, thiserror::Error)]
enum ManifestError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    ManifestFormatError(#[from] ManifestFormatError),
    #[error("it belongs to image {image} with id {id}, which has another path")]
    Misplaced { image: String, id: ImageId },
    #[error("another manifest has the same id {id}")]
    DuplicateId { id: ImageId },
    #[error("the file is too large for a manifest")]
    TooLong,
}

/// Finishes interrupted work and returns all images.
pub(super) fn recover(
    layout: &Layout,
    builder: &str,
    builder_id: &str,
) -> Result<ManifestIndex, FileError> {
    let mut recovery = RepositoryRecovery {
        layout,
        index: ManifestIndex::new(),
        unreadable: BTreeSet::new(),
        manifest_bases: BTreeSet::new(),
        failed_recoveries: ManifestIndex::new(),
    };
    for work in [layout.scratch(), layout.converting()] {
        let cleared = files::remove_tree(&work).and_then(|()| files::create_dir(&work));
        if let Err(error) = cleared {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "failed to remove work files of an earlier process");
        }
    }
    recovery.finish_deletions()?;
    recovery.finish_drafts()?;

    let names = files::list(layout.dir())?;
    recovery.read_manifests(&names)?;
    let failed_recoveries = std::mem::take(&mut recovery.failed_recoveries);
    recovery.index.extend(failed_recoveries);
    recovery.find_python_images(&names, builder, builder_id)?;
    Ok(recovery.index)
}

struct RepositoryRecovery<'a> {
    layout: &'a Layout,
    index: ManifestIndex,
    /// Ids of unreadable records.
    unreadable: BTreeSet<ImageId>,
    /// Base names that have a manifest, readable or not.
    manifest_bases: BTreeSet<String>,
    /// Failed images whose recovery failed.
    failed_recoveries: ManifestIndex,
}

impl RepositoryRecovery<'_> {
    fn finish_deletions(&mut self) -> Result<(), FileError> {
        for (id, record) in self.records(&self.layout.deleting())? {
            let Some((manifest, base)) = record.and_then(with_base) else {
                self.unreadable.insert(id);
                continue;
            };
            tracing::info!(image_id = %id, "finishing interrupted deletion of image");
            if let Err(error) = remove_image(self.layout, &base, &id) {
                let left = Arc::new(deletion_failed(manifest, &error));
                self.failed_recoveries.insert(id, left);
            }
        }
        Ok(())
    }

    /// Finishes the drafts of an earlier process: committed ones are images, others become failed.
    fn finish_drafts(&mut self) -> Result<(), FileError> {
        for (id, record) in self.records(&self.layout.drafts())? {
            let Some((manifest, base)) = record.and_then(with_base) else {
                self.unreadable.insert(id);
                continue;
            };
            let path = self.layout.manifest(&base);
            // A manifest of an earlier attempt is ignored.
            let state = match read_manifest(&path) {
                Ok(written) if written.id == id && written.begun == manifest.begun => {
                    Some(written.state)
                }
                _ => None,
            };
            if state != Some(ManifestState::Ready) {
                tracing::warn!(image_id = %id, "build was interrupted; removing its files");
            }
            let failed = manifest.failed(ImageFailure::new(ImageFailure::INTERRUPTED), now());
            let ended = match state {
                Some(_) => Ok(()),
                None => self.store_failure(&base, &failed),
            };
            if let Err(error) = ended.and_then(|()| files::remove_file(&self.layout.draft(&id))) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(image_id = %id, error, "failed to clean up interrupted build; retrying at next start");
                if state.is_none() {
                    self.failed_recoveries.insert(id, Arc::new(failed));
                }
            }
        }
        Ok(())
    }

    /// Removes the files and writes a failed manifest, in this order because the files may have filled the disk.
    fn store_failure(&self, base: &BaseName, failed: &Manifest) -> Result<(), FileError> {
        remove_files(self.layout, base)?;
        files::create_dir(&self.layout.manifest_dir(base))?;
        files::write_atomic(&self.layout.manifest(base), &failed.to_json())?;
        files::sync_dir(self.layout.dir())
    }

    /// Reads the records in a directory. Unreadable ones are `None`.
    fn records(&self, dir: &Path) -> Result<Vec<(ImageId, Option<Manifest>)>, FileError> {
        let mut records = Vec::new();
        for (name, kind) in files::list(dir)? {
            if name.ends_with(".tmp") {
                files::remove_file(&dir.join(&name))?;
            }
            let Some(id) = name
                .strip_suffix(".json")
                .and_then(|id| id.parse::<ImageId>().ok())
                .filter(|_| kind.is_file())
            else {
                continue;
            };
            let path = dir.join(&name);
            let record = read_manifest(&path).and_then(|manifest| {
                if manifest.id == id {
                    Ok(manifest)
                } else {
                    let image = manifest.image.to_string();
                    let id = manifest.id;
                    Err(ManifestError::Misplaced { image, id })
                }
            });
            match record {
                Ok(manifest) => records.push((id, Some(manifest))),
                Err(error) => {
                    tracing::error!(
                        path = %path.display(),
                        image_id = %id,
                        error = &error as &dyn std::error::Error,
                        "failed to read image record; ignoring files with this id until they and the record are removed"
                    );
                    records.push((id, None));
                }
            }
        }
        Ok(records)
    }

    fn read_manifests(&mut self, names: &[(String, FileType)]) -> Result<(), FileError> {
        for (name, kind) in names {
            let Some(stem) = name.strip_suffix(MANIFEST_DIR).filter(|_| kind.is_dir()) else {
                continue;
            };
            let path = self.layout.dir().join(name).join(MANIFEST);
            let manifest = match read_manifest(&path) {
                Ok(manifest) => manifest,
                Err(ManifestError::File(error)) if error.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => {
                    self.manifest_bases.insert(stem.to_owned());
                    log_invalid_manifest(&path, &error);
                    continue;
                }
            };
            self.manifest_bases.insert(stem.to_owned());
            let base = manifest_base(&manifest).filter(|base| base.as_str() == stem);
            let Some(base) = base else {
                let image = manifest.image.to_string();
                let id = manifest.id;
                log_invalid_manifest(&path, &ManifestError::Misplaced { image, id });
                continue;
            };
            if self.index.contains_key(&manifest.id) {
                log_invalid_manifest(&path, &ManifestError::DuplicateId { id: manifest.id });
                continue;
            }
            let manifest = self.apply_to_disk(&base, manifest);
            if manifest.state == ManifestState::Failed
                && names.iter().any(|(name, _)| base.owns(name))
                && let Err(error) = remove_files(self.layout, &base)
            {
                // Left by a killed process, or by a build program that outlived it.
                let error = &error as &dyn std::error::Error;
                tracing::error!(image_id = %manifest.id, error, "failed to remove files of failed build");
            }
            self.index.insert(manifest.id.clone(), Arc::new(manifest));
        }
        Ok(())
    }

    /// Finishes interrupted file removals and drops files that do not exist.
    fn apply_to_disk(&self, base: &BaseName, mut manifest: Manifest) -> Manifest {
        if !manifest.removing.is_empty() {
            let formats = std::mem::take(&mut manifest.removing);
            let removed = formats
                .iter()
                .try_for_each(|format| remove_image_file(&self.layout.file(base, format)))
                .and_then(|()| {
                    files::write_atomic(&self.layout.manifest(base), &manifest.to_json())
                });
            if let Err(error) = removed {
                let error = &error as &dyn std::error::Error;
                tracing::error!(image_id = %manifest.id, error, "failed to delete image files; retrying at next start");
                manifest.removing = formats;
            }
        }
        if manifest.state == ManifestState::Building {
            // Only if edited manually, since drafts are stored elsewhere.
            manifest = manifest.failed(ImageFailure::new(ImageFailure::INTERRUPTED), now());
        }
        drop_missing(self.layout, base, &mut manifest);
        manifest
    }

    /// Adds image files of Python Nodepool, which writes no manifests.
    fn find_python_images(
        &mut self,
        names: &[(String, FileType)],
        builder: &str,
        builder_id: &str,
    ) -> Result<(), FileError> {
        let mut found = BTreeMap::<ImageId, Manifest>::new();
        for (name, kind) in names {
            let Some((image, id, format)) = parse_python_name(name).filter(|_| kind.is_file())
            else {
                continue;
            };
            let usable = !self.unreadable.contains(&id) && !self.index.contains_key(&id);
            let base = BaseName::new(&image, &id)
                .ok()
                .filter(|base| usable && !self.manifest_bases.contains(base.as_str()));
            let Some(base) = base else { continue };
            let path = self.layout.file(&base, &format);
            let Some((file, made)) = python_image_file(&path)? else {
                continue;
            };
            let manifest = found.entry(id.clone()).or_insert_with(|| {
                let builder = (builder.into(), builder_id.into());
                Manifest::new(image.clone(), id, None, builder, ManifestState::Ready, made)
            });
            if manifest.image == image {
                manifest.since = manifest.since.max(made);
                manifest.files.insert(format, file);
            }
        }
        for (id, manifest) in found {
            self.index.insert(id, Arc::new(manifest));
        }
        Ok(())
    }
}

fn python_image_file(path: &Path) -> Result<Option<(ImageFile, Timestamp)>, FileError> {
    let meta = std::fs::symlink_metadata(path).attempt("inspect", path)?;
    if meta.len() == 0 {
        return Ok(None);
    }
    let file = ImageFile {
        size: meta.len(),
        allocated: meta.blocks().saturating_mul(512),
        digests: checksum::read(path)?,
        verified: None,
    };
    let made = meta.modified().map_or_else(|_| now(), Timestamp::from);
    Ok(Some((file, made)))
}

fn manifest_base(manifest: &Manifest) -> Option<BaseName> {
    BaseName::new(&manifest.image, &manifest.id).ok()
}

fn with_base(manifest: Manifest) -> Option<(Manifest, BaseName)> {
    let base = manifest_base(&manifest)?;
    Some((manifest, base))
}

fn read_manifest(path: &Path) -> Result<Manifest, ManifestError> {
    let mut text = Vec::new();
    files::open_regular(path)?
        .take(MAX_MANIFEST_LEN + 1)
        .read_to_end(&mut text)
        .attempt("read", path)?;
    if text.len() as u64 > MAX_MANIFEST_LEN {
        return Err(ManifestError::TooLong);
    }
    Ok(Manifest::from_json(&text)?)
}

fn log_invalid_manifest(path: &Path, error: &ManifestError) {
    tracing::error!(
        path = %path.display(),
        error = error as &dyn std::error::Error,
        "failed to read manifest; ignoring its image until the manifest is repaired or removed with its files"
    );
}

/// Removes files from the manifest that do not exist or have changed.
pub(super) fn drop_missing(layout: &Layout, base: &BaseName, manifest: &mut Manifest) {
    manifest.files.retain(|format, file| {
        let path = layout.file(base, format);
        let reason = match std::fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => "not a regular file",
            Ok(meta) if meta.len() != file.size => "size has changed",
            Ok(_) => return true,
            Err(_) => "file does not exist",
        };
        tracing::warn!(
            path = %path.display(),
            reason,
            "ignoring image file; delete the image to rebuild it"
        );
        false
    });
}

/// Returns the failed manifest of an image whose deletion failed, so that it can be repeated.
pub(super) fn deletion_failed(manifest: Manifest, error: &FileError) -> Manifest {
    tracing::error!(
        image_id = %manifest.id,
        error = error as &dyn std::error::Error,
        "failed to delete image"
    );
    let reason = format!("failed to delete image: {}", with_causes(error));
    manifest.failed(ImageFailure::new(reason), now())
}

/// Removes all files of an image, and its deletion record last.
pub(super) fn remove_image(
    layout: &Layout,
    base: &BaseName,
    id: &ImageId,
) -> Result<(), FileError> {
    remove_files(layout, base)?;
    files::remove_tree(&layout.manifest_dir(base))?;
    files::sync_dir(layout.dir())?;
    // Present if its recovery failed.
    files::remove_file(&layout.draft(id))?;
    files::remove_file(&layout.deletion(id))
}

/// Removes all files of `base` except its manifest.
pub(super) fn remove_files(layout: &Layout, base: &BaseName) -> Result<(), FileError> {
    let dir = layout.dir();
    for (name, _) in files::list(dir)? {
        if base.owns(&name) {
            files::remove_tree(&dir.join(name))?;
        }
    }
    files::sync_dir(dir)
}

/// Removes an image file and its checksum files.
pub(super) fn remove_image_file(path: &Path) -> Result<(), FileError> {
    files::remove_file(path)?;
    checksum::remove(path)
}
