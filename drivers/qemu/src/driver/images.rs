//! Images: uploads, which are files of ours, and the files that an operator has put on this host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nodeyard_driver::{
    CloudImage, Error, ImageStatus, State, Step, UploadOrder, UploadedImage, image_filters,
};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::QemuDriver;
use crate::host::{LocalId, Upload, UploadStatus};
use crate::local::inspect;
use crate::options::ImageChoice;
use crate::recipe::{DiskFormat, readable};

/// How far an upload is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Progress {
    /// Asked for; a description may have been written without our knowing.
    #[default]
    Ordered,
    Placing {
        upload: LocalId,
    },
}

impl QemuDriver {
    pub(super) async fn step_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        if !order.marks.is_empty() {
            return Err(Error::unsupported("give tags to images"));
        }
        let mut uploads = if state.take_fresh() {
            Vec::new()
        } else {
            self.host.uploads().await?
        };
        match state.read()? {
            Progress::Ordered => {
                let format = DiskFormat::parse(&order.format)?;
                check(&order.file, format)?;
                uploads.retain(|upload| {
                    upload.tags == order.tags && upload.status != UploadStatus::Going
                });
                let upload = match uploads.pop() {
                    Some(upload) => upload,
                    None => {
                        let upload = describe(order, format, now);
                        self.host.record_upload(&upload).await?;
                        upload
                    }
                };
                state.external_id = Some(upload.id.as_str().into());
                state.write(&Progress::Placing { upload: upload.id })?;
                Ok(Step::go_on())
            }
            Progress::Placing { upload: id } => {
                uploads.retain(|upload| upload.id == id && upload.status != UploadStatus::Going);
                let Some(upload) = uploads.pop() else {
                    state.write(&Progress::Ordered)?;
                    return Err(Error::retry(format!(
                        "image {id} was deleted while it was made"
                    )));
                };
                if upload.status != UploadStatus::Active {
                    self.host.place(&upload, &order.file).await?;
                }
                Ok(Step::Done(UploadedImage {
                    external_id: upload.id.as_str().into(),
                    external_name: upload.name,
                }))
            }
        }
    }

    /// Nothing new boots from a going image; what did so before keeps it.
    pub(super) async fn step_delete_images(&self, uploads: Vec<Upload>) -> Result<Step<()>, Error> {
        let mut waits = false;
        for mut upload in uploads {
            if upload.status != UploadStatus::Going {
                upload.status = UploadStatus::Going;
                self.host.record_upload(&upload).await?;
            }
            let machines = self.host.machines().await?;
            let used = machines
                .iter()
                .any(|machine| machine.upload.as_ref() == Some(&upload.id));
            if used {
                waits = true;
            } else {
                self.host.discard_upload(&upload).await?;
            }
        }
        Ok(if waits {
            Step::wait(self.options.poll.most)
        } else {
            Step::Done(())
        })
    }

    pub(super) async fn images(&self) -> Result<Vec<CloudImage>, Error> {
        let uploads = self.host.uploads().await?;
        let files = self.host.files().await?;
        let uploads = uploads.into_iter().map(as_image);
        Ok(uploads
            .chain(files.iter().filter_map(|path| file_as_image(path)))
            .collect())
    }

    /// What filters choose from: files of the operator's only.
    pub(super) async fn files_as_images(&self) -> Result<Vec<CloudImage>, Error> {
        let files = self.host.files().await?;
        Ok(files
            .iter()
            .filter_map(|path| file_as_image(path))
            .collect())
    }

    /// The file of a cloud image.
    pub(super) async fn cloud_image_file(&self, name: &str) -> Result<PathBuf, Error> {
        match &self.options.cloud_image(name)?.choice {
            ImageChoice::Path(path) => {
                readable(path, "image")?;
                Ok(path.clone())
            }
            ImageChoice::Filters(filters) => {
                let files = self.host.files().await?;
                let images: Vec<_> = files
                    .into_iter()
                    .filter_map(|path| Some((file_as_image(&path)?, path)))
                    .collect();
                let newest = image_filters::newest(filters, images.iter().map(|(image, _)| image));
                let found = newest
                    .and_then(|newest| images.iter().find(|(image, _)| image.id == newest.id));
                let found = found.map(|(_, path)| path.clone());
                found.ok_or_else(|| {
                    let directory = self.options.directory.join("images");
                    let directory = directory.display();
                    let images = images.iter().map(|(image, _)| image);
                    let nothing = image_filters::nothing_found(filters, images);
                    Error::permanent(format!("cloud image {name}, in {directory}: {nothing}"))
                })
            }
        }
    }
}

/// An image that was built elsewhere must not reach for files of this host.
fn check(source: &Path, format: DiskFormat) -> Result<(), Error> {
    let path = source.display();
    let header = inspect(source)
        .map_err(|cause| Error::permanent(format!("image {path} cannot be read")).because(cause))?;
    if format == DiskFormat::Qcow2 && header.format != DiskFormat::Qcow2 {
        return Err(Error::permanent(format!(
            "image {path} is not qcow2, whatever its name says"
        )));
    }
    if format == DiskFormat::Qcow2 && header.names_others {
        return Err(Error::permanent(format!(
            "image {path} is not complete but names another file; flatten it with `qemu-img convert`"
        )));
    }
    Ok(())
}

fn describe(order: &UploadOrder, format: DiskFormat, now: Timestamp) -> Upload {
    Upload {
        id: LocalId::new(order.image().as_str()),
        name: order.name.clone(),
        format,
        tags: order.tags.clone(),
        metadata: order.metadata.clone(),
        created: now,
        status: UploadStatus::Pending,
    }
}

fn as_image(upload: Upload) -> CloudImage {
    let mut properties = upload.metadata;
    let tags = upload.tags.to_metadata().into_iter();
    properties.extend(tags.map(|(key, value)| (key.to_owned(), value)));
    CloudImage {
        id: upload.id.as_str().into(),
        name: upload.name,
        status: match upload.status {
            UploadStatus::Active => ImageStatus::Active,
            UploadStatus::Pending | UploadStatus::Going => ImageStatus::Pending,
        },
        created: Some(upload.created),
        properties,
        marks: Vec::new(),
    }
}

/// A file of the operator's. None if it has just gone, or its name is not text.
fn file_as_image(path: &Path) -> Option<CloudImage> {
    let name = path.file_name()?.to_str()?;
    let modified = path.metadata().ok()?.modified().ok()?;
    Some(CloudImage {
        id: name.into(),
        name: name.into(),
        status: ImageStatus::Active,
        created: Some(modified.into()),
        properties: BTreeMap::from([("file".to_owned(), name.to_owned())]),
        marks: Vec::new(),
    })
}
