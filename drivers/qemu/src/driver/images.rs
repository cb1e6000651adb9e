//! Images: uploads, which are files of ours, and the files that an operator put on this host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nodeyard_driver::{
    Clock, CloudImage, Error, ImageStatus, Progress, UploadOrder, UploadedImage, image_filters,
};

use super::QemuDriver;
use crate::host::{LocalId, StoredUpload, UploadStatus};
use crate::local::inspect;
use crate::machine_spec::{DiskFormat, check_readable};
use crate::options::QemuImageChoice;

impl QemuDriver {
    pub(super) async fn upload_image(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        if !order.marks.is_empty() {
            return Err(Error::unsupported("give tags to images"));
        }
        let format = DiskFormat::parse(&order.format)?;
        check_file(&order.file, format)?;
        let upload = self.find_or_record_upload(order, format).await?;
        progress.set_external_id(upload.id.as_str());
        if upload.status != UploadStatus::Active {
            self.host
                .store_upload(&upload, &order.file, progress)
                .await?;
        }
        Ok(UploadedImage {
            external_id: upload.id.as_str().into(),
            external_name: upload.name,
        })
    }

    async fn find_or_record_upload(
        &self,
        order: &UploadOrder,
        format: DiskFormat,
    ) -> Result<StoredUpload, Error> {
        if !order.first_attempt {
            let uploads = self.host.uploads().await?;
            let earlier = uploads.into_iter().find(|upload| {
                upload.tags == order.tags && upload.status != UploadStatus::Deleting
            });
            if let Some(upload) = earlier {
                return Ok(upload);
            }
        }
        let upload = new_upload(order, format);
        self.host.write_upload(&upload).await?;
        Ok(upload)
    }

    /// Returns when the uploads are gone. No new machine boots from them; those that did keep them until they are
    /// deleted.
    pub(super) async fn delete_uploads(&self, mut uploads: Vec<StoredUpload>) -> Result<(), Error> {
        for upload in &mut uploads {
            if upload.status != UploadStatus::Deleting {
                upload.status = UploadStatus::Deleting;
                self.host.write_upload(upload).await?;
            }
        }
        let timer = self.options.poll.start();
        for upload in &uploads {
            while self.is_in_use(&upload.id).await? {
                timer.tick().await;
            }
            self.host.remove_upload(upload).await?;
        }
        Ok(())
    }

    async fn is_in_use(&self, upload: &LocalId) -> Result<bool, Error> {
        let machines = self.host.machines().await?;
        Ok(machines
            .iter()
            .any(|machine| machine.upload.as_ref() == Some(upload)))
    }

    pub(super) async fn all_images(&self) -> Result<Vec<CloudImage>, Error> {
        let mut images = self.operator_images().await?;
        let uploads = self.host.uploads().await?;
        images.extend(uploads.into_iter().map(upload_as_image));
        Ok(images)
    }

    /// Returns the files that an operator put on this host, which `image-filters` choose from.
    pub(super) async fn operator_images(&self) -> Result<Vec<CloudImage>, Error> {
        let files = self.host.image_files().await?;
        Ok(files
            .iter()
            .filter_map(|path| file_as_image(path))
            .collect())
    }

    /// Returns the file of a cloud image.
    pub(super) async fn cloud_image_file(&self, name: &str) -> Result<PathBuf, Error> {
        match &self.options.cloud_image(name)?.choice {
            QemuImageChoice::Path(path) => {
                check_readable(path, "image")?;
                Ok(path.clone())
            }
            QemuImageChoice::Filters(filters) => {
                let files = self.host.image_files().await?;
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

/// Refuses an image that refers to other files: built elsewhere, it would expose files of this host.
fn check_file(source: &Path, format: DiskFormat) -> Result<(), Error> {
    let path = source.display();
    let header = inspect(source)
        .map_err(|cause| Error::permanent(format!("failed to read image {path}")).because(cause))?;
    if format == DiskFormat::Qcow2 && header.format != DiskFormat::Qcow2 {
        return Err(Error::permanent(format!(
            "image {path} is not qcow2, although it is declared as such"
        )));
    }
    if format == DiskFormat::Qcow2 && header.names_others {
        return Err(Error::permanent(format!(
            "image {path} is incomplete: its header names another file; flatten it with `qemu-img convert`"
        )));
    }
    Ok(())
}

fn new_upload(order: &UploadOrder, format: DiskFormat) -> StoredUpload {
    StoredUpload {
        id: LocalId::new(order.image().as_str()),
        name: order.name.clone(),
        format,
        tags: order.tags.clone(),
        metadata: order.metadata.clone(),
        created: Clock::system().now(),
        status: UploadStatus::Pending,
    }
}

fn upload_as_image(upload: StoredUpload) -> CloudImage {
    let mut properties = upload.metadata;
    let tags = upload.tags.to_metadata().into_iter();
    properties.extend(tags.map(|(key, value)| (key.to_owned(), value)));
    CloudImage {
        id: upload.id.as_str().into(),
        name: upload.name,
        status: match upload.status {
            UploadStatus::Active => ImageStatus::Active,
            UploadStatus::Pending | UploadStatus::Deleting => ImageStatus::Pending,
        },
        created: Some(upload.created),
        properties,
        marks: Vec::new(),
    }
}

/// Returns None if the file was just removed, or if its name is not UTF-8.
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
