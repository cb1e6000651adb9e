//! What is in images-dir when it is taken into use.
//!
//! First the records of unfinished work are settled, then the manifests are read, then the files that have none are
//! looked at. A record that cannot be read is reported and left, and no file that may be its is taken for an image.
//!
//! A directory that is full, or has a file in it that cannot be removed, is taken into use all the same: only a worker
//! that runs can make room. What could not be settled is known as a failure, and its record stays for the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::FileType;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nodeyard_model::{Timestamp, now, with_causes};

use crate::files::{self, FileError, Try as _};
use crate::layout::{Base, Layout, MANIFEST, MANIFEST_DIR, parse_foreign};
use crate::manifest::{Failure, Flaw, ImageFile, Manifest, State};
use crate::{ImageId, checksum};

/// A manifest that is longer is none.
const LONGEST_MANIFEST: u64 = 4 << 20;

type Index = BTreeMap<ImageId, Arc<Manifest>>;

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Flaw(#[from] Flaw),
    #[error("it is of image {image} with id {id}, whose place is elsewhere")]
    Misplaced { image: String, id: ImageId },
    #[error("another manifest here has the id {id}, too")]
    Twin { id: ImageId },
    #[error("it is too long for a manifest")]
    TooLong,
}

/// Settles what is half done, and finds the images.
pub(super) fn recover(
    layout: &Layout,
    builder: &str,
    builder_id: &str,
) -> Result<Index, FileError> {
    let mut search = Search {
        layout,
        index: Index::new(),
        unclear: BTreeSet::new(),
        covered: BTreeSet::new(),
        unsettled: Index::new(),
    };
    for work in [layout.scratch(), layout.converting()] {
        let cleared = files::remove_tree(&work).and_then(|()| files::create_dir(&work));
        if let Err(error) = cleared {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "work files of a process that is gone stay");
        }
    }
    search.finish_deletions()?;
    search.end_drafts()?;

    let names = files::list(layout.dir())?;
    search.read_manifests(&names)?;
    let unsettled = std::mem::take(&mut search.unsettled);
    search.index.extend(unsettled);
    search.find_foreign(&names, builder, builder_id)?;
    Ok(search.index)
}

struct Search<'a> {
    layout: &'a Layout,
    index: Index,
    /// Ids of records that cannot be read.
    unclear: BTreeSet<ImageId>,
    /// Bases that have a manifest, readable or not.
    covered: BTreeSet<String>,
    /// What stands for images whose records could not be settled.
    unsettled: Index,
}

impl Search<'_> {
    fn finish_deletions(&mut self) -> Result<(), FileError> {
        for (id, record) in self.records(&self.layout.deleting())? {
            let Some((manifest, base)) = record.and_then(with_base) else {
                self.unclear.insert(id);
                continue;
            };
            tracing::info!("image {id}: removing what a killed process left of it");
            if let Err(error) = remove_image(self.layout, &base, &id) {
                let left = Arc::new(undeleted(manifest, &error));
                self.unsettled.insert(id, left);
            }
        }
        Ok(())
    }

    /// A draft of a process that is gone: an image if it had come that far, else a failure.
    fn end_drafts(&mut self) -> Result<(), FileError> {
        for (id, record) in self.records(&self.layout.drafts())? {
            let Some((manifest, base)) = record.and_then(with_base) else {
                self.unclear.insert(id);
                continue;
            };
            let path = self.layout.manifest(&base);
            // What an earlier attempt left says nothing about this one.
            let state = match read_manifest(&path) {
                Ok(written) if written.id == id && written.begun == manifest.begun => {
                    Some(written.state)
                }
                _ => None,
            };
            if state != Some(State::Ready) {
                tracing::warn!("image {id}: its build was interrupted, its files are removed");
            }
            let failed = manifest.failed(Failure::new(Failure::INTERRUPTED), now());
            let ended = match state {
                Some(_) => Ok(()),
                None => self.note_failure(&base, &failed),
            };
            if let Err(error) = ended.and_then(|()| files::remove_file(&self.layout.draft(&id))) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "image {id}: the next start tries again to settle it");
                if state.is_none() {
                    self.unsettled.insert(id, Arc::new(failed));
                }
            }
        }
        Ok(())
    }

    /// The files go first: they may have filled the disk, and the manifest needs room.
    fn note_failure(&self, base: &Base, failed: &Manifest) -> Result<(), FileError> {
        remove_files(self.layout, base)?;
        files::create_dir(&self.layout.manifest_dir(base))?;
        files::write_atomic(&self.layout.manifest(base), &failed.to_json())?;
        files::sync_dir(self.layout.dir())
    }

    /// The records in a directory of our own; none for one that cannot be read.
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
                    Err(Unusable::Misplaced { image, id })
                }
            });
            match record {
                Ok(manifest) => records.push((id, Some(manifest))),
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "{} cannot be used, and no file of id {id} is taken for an image: remove the files of that id, \
                         then this one",
                        path.display()
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
                Err(Unusable::File(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    self.covered.insert(stem.to_owned());
                    report(&path, &error);
                    continue;
                }
            };
            self.covered.insert(stem.to_owned());
            let base = manifest_base(&manifest).filter(|base| base.as_str() == stem);
            let Some(base) = base else {
                let image = manifest.image.to_string();
                let id = manifest.id;
                report(&path, &Unusable::Misplaced { image, id });
                continue;
            };
            if self.index.contains_key(&manifest.id) {
                report(&path, &Unusable::Twin { id: manifest.id });
                continue;
            }
            let manifest = self.settle(&base, manifest);
            if manifest.state == State::Failed
                && names.iter().any(|(name, _)| base.owns(name))
                && let Err(error) = remove_files(self.layout, &base)
            {
                // They are there since the process was killed before it removed them, or the program outlived it.
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "image {}: files of a failed build stay", manifest.id);
            }
            self.index.insert(manifest.id.clone(), Arc::new(manifest));
        }
        Ok(())
    }

    /// What a manifest says, compared with the files.
    fn settle(&self, base: &Base, mut manifest: Manifest) -> Manifest {
        if !manifest.removing.is_empty() {
            let formats = std::mem::take(&mut manifest.removing);
            let removed = formats
                .iter()
                .try_for_each(|format| remove_format(&self.layout.file(base, format)))
                .and_then(|()| {
                    files::write_atomic(&self.layout.manifest(base), &manifest.to_json())
                });
            if let Err(error) = removed {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "image {}: files that were to go stay", manifest.id);
                manifest.removing = formats;
            }
        }
        if manifest.state == State::Building {
            // Written by hand: drafts are elsewhere.
            manifest = manifest.failed(Failure::new(Failure::INTERRUPTED), now());
        }
        drop_missing(self.layout, base, &mut manifest);
        manifest
    }

    /// Files of Python Nodepool, which writes no manifest.
    fn find_foreign(
        &mut self,
        names: &[(String, FileType)],
        builder: &str,
        builder_id: &str,
    ) -> Result<(), FileError> {
        let mut found = BTreeMap::<ImageId, Manifest>::new();
        for (name, kind) in names {
            let Some((image, id, format)) = parse_foreign(name).filter(|_| kind.is_file()) else {
                continue;
            };
            let usable = !self.unclear.contains(&id) && !self.index.contains_key(&id);
            let base = Base::new(&image, &id)
                .ok()
                .filter(|base| usable && !self.covered.contains(base.as_str()));
            let Some(base) = base else { continue };
            let path = self.layout.file(&base, &format);
            let Some((file, made)) = foreign_file(&path)? else {
                continue;
            };
            let manifest = found.entry(id.clone()).or_insert_with(|| {
                let builder = (builder.into(), builder_id.into());
                Manifest::new(image.clone(), id, None, builder, State::Ready, made)
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

fn foreign_file(path: &Path) -> Result<Option<(ImageFile, Timestamp)>, FileError> {
    let meta = std::fs::symlink_metadata(path).attempt("look at", path)?;
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

fn manifest_base(manifest: &Manifest) -> Option<Base> {
    Base::new(&manifest.image, &manifest.id).ok()
}

fn with_base(manifest: Manifest) -> Option<(Manifest, Base)> {
    let base = manifest_base(&manifest)?;
    Some((manifest, base))
}

fn read_manifest(path: &Path) -> Result<Manifest, Unusable> {
    let mut text = Vec::new();
    files::open_regular(path)?
        .take(LONGEST_MANIFEST + 1)
        .read_to_end(&mut text)
        .attempt("read", path)?;
    if text.len() as u64 > LONGEST_MANIFEST {
        return Err(Unusable::TooLong);
    }
    Ok(Manifest::from_json(&text)?)
}

fn report(path: &Path, error: &Unusable) {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "{} cannot be used, so its image is not here: mend it, or remove its directory and the files beside it",
        path.display()
    );
}

/// Forgets the files of an image that are not there, or are not what they were.
pub(super) fn drop_missing(layout: &Layout, base: &Base, manifest: &mut Manifest) {
    manifest.files.retain(|format, file| {
        let path = layout.file(base, format);
        let flaw = match std::fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => "is not a regular file",
            Ok(meta) if meta.len() != file.size => "has another size than when it was made",
            Ok(_) => return true,
            Err(_) => "is gone",
        };
        tracing::warn!(
            "{} {flaw}: it is not used; delete the image to have it made again",
            path.display()
        );
        false
    });
}

/// What stands for an image that is half removed: it is of no use, and can be removed again.
pub(super) fn undeleted(manifest: Manifest, error: &FileError) -> Manifest {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "image {}: it is not removed completely",
        manifest.id
    );
    let reason = format!("it is not removed completely: {}", with_causes(error));
    manifest.failed(Failure::new(reason), now())
}

/// Removes all of an image, the record of its removal last.
pub(super) fn remove_image(layout: &Layout, base: &Base, id: &ImageId) -> Result<(), FileError> {
    remove_files(layout, base)?;
    files::remove_tree(&layout.manifest_dir(base))?;
    files::sync_dir(layout.dir())?;
    // One that could not be settled.
    files::remove_file(&layout.draft(id))?;
    files::remove_file(&layout.deletion(id))
}

/// Removes every file of `base`, but not its manifest.
pub(super) fn remove_files(layout: &Layout, base: &Base) -> Result<(), FileError> {
    let dir = layout.dir();
    for (name, _) in files::list(dir)? {
        if base.owns(&name) {
            files::remove_tree(&dir.join(name))?;
        }
    }
    files::sync_dir(dir)
}

/// Removes a file with its digests.
pub(super) fn remove_format(path: &Path) -> Result<(), FileError> {
    files::remove_file(path)?;
    checksum::remove(path)
}
