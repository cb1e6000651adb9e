//! Finds images that were deleted in the cloud while their records remain.
//!
//! An upload whose image was listed before, and is missing from two polls some time apart, is marked for deletion:
//! launches use other uploads from then on, and a builder uploads the image again. An image that was never listed is
//! ignored, since not every driver lists images by the ids in their records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{Resource, ResourceKind};
use nodeyard_model::{Timestamp, UploadKey, UploadState};
use nodeyard_operations::images;
use nodeyard_store::registry::{ImageId, ImageRecord};
use tracing::{debug, warn};

use super::Dispatcher;
use crate::context::Context;
use crate::provider::Provider;

/// The uploads whose images have been listed, and since when they are missing.
#[derive(Debug, Default)]
pub(super) struct ListedUploads(BTreeMap<UploadKey, Option<Timestamp>>);

/// A ready upload, and whether its image was listed.
type CheckedUpload = (UploadKey, bool);

impl ListedUploads {
    /// Takes in a poll. Returns the uploads that have been missing for `apart`.
    fn update(
        &mut self,
        uploads: impl IntoIterator<Item = CheckedUpload>,
        now: Timestamp,
        apart: Duration,
    ) -> Vec<UploadKey> {
        let before = std::mem::take(&mut self.0);
        let mut missing = Vec::new();
        for (upload, is_listed) in uploads {
            let since = match (is_listed, before.get(&upload)) {
                (true, _) => None,
                (false, None) => continue,
                (false, Some(since)) => Some(since.unwrap_or(now)),
            };
            match since {
                Some(since) if now.since(since) >= apart => missing.push(upload),
                since => {
                    self.0.insert(upload, since);
                }
            }
        }
        missing
    }
}

impl Dispatcher {
    /// Marks uploads whose images are gone, so that they are replaced.
    pub(super) fn mark_missing_uploads(
        &mut self,
        provider: &Arc<Provider>,
        resources: &[Resource],
    ) {
        let images = resources
            .iter()
            .filter(|resource| resource.kind == ResourceKind::IMAGES);
        let listed: BTreeSet<String> = images.map(|image| image.id.to_string()).collect();
        let mut uploads: Vec<CheckedUpload> = Vec::new();
        self.ctx.images.for_each(|item| {
            if let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value)
                && key.provider == provider.name
                && upload.state == UploadState::Ready
                && let Some(id) = upload.external_id.as_deref()
            {
                uploads.push((key.clone(), listed.contains(id)));
            }
        });
        let Some(running) = self.providers.get_mut(&provider.name) else {
            return;
        };
        // Regular polls are about one clean-up interval apart.
        let apart = self.ctx.timing.cleanup / 2;
        let now = self.ctx.clock.now();
        let missing = running.polls.listed_uploads.update(uploads, now, apart);
        for upload in missing {
            self.ctx.tasks.spawn(mark(self.ctx.clone(), upload));
        }
    }
}

/// Marks an upload as deleting, which has a builder remove its record and upload the image again.
async fn mark(ctx: Context, upload: UploadKey) {
    let work = async {
        let UploadKey {
            build, provider, ..
        } = &upload;
        match images::delete_upload(&ctx.registry, &upload, ctx.clock.now()).await {
            Ok(()) => warn!(
                %provider, image = %build.image, build = %build.build, upload = %upload.upload,
                "image was deleted in the cloud; marked its upload for replacement"
            ),
            // It is seen as listed only if it is back.
            Err(error) => debug!(
                %provider, image = %build.image, build = %build.build, upload = %upload.upload, %error,
                "failed to mark an upload whose image was deleted in the cloud"
            ),
        }
    };
    ctx.unless_stopped(work).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(number: u32) -> UploadKey {
        UploadKey {
            build: nodeyard_model::BuildKey {
                image: "debian".parse().unwrap(),
                build: "0123456789abcdef0123456789abcdef".parse().unwrap(),
            },
            provider: "cloud".parse().unwrap(),
            upload: format!("{number:010}").parse().unwrap(),
        }
    }

    #[test]
    fn only_what_was_listed_before_is_missing_and_not_at_once() {
        let apart = Duration::from_secs(30);
        let at = |seconds: f64| Timestamp::from_secs(seconds).unwrap();
        let (gone, never, back) = (upload(1), upload(2), upload(3));
        let all = |gone_listed, back_listed| {
            [
                (gone.clone(), gone_listed),
                (never.clone(), false),
                (back.clone(), back_listed),
            ]
        };
        let mut listed = ListedUploads::default();
        assert_eq!(listed.update(all(true, true), at(0.0), apart), []);
        assert_eq!(listed.update(all(false, false), at(10.0), apart), []);
        assert_eq!(listed.update(all(false, true), at(20.0), apart), []);
        assert_eq!(listed.update(all(false, false), at(39.0), apart), []);
        let missing = listed.update(all(false, false), at(40.0), apart);
        assert_eq!(missing, std::slice::from_ref(&gone));
        // It is not reported again.
        assert_eq!(listed.update(all(false, true), at(80.0), apart), []);
    }
}
