//! Images on workers that no record accounts for.
//!
//! A record is written before a worker is asked for anything, so an image of ours without a record is left over: its
//! worker was away when the record went. Two looks in a row must show it, and the worker must say that it made the
//! image for this installation. What somebody else has built stays until they delete it.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey};
use nodeyard_store::Result;

use super::context::Context;
use super::picture;
use crate::jobs::DeleteJob;

/// What was without a record at the last look.
#[derive(Debug, Default)]
pub(super) struct Sightings(BTreeSet<BuildId>);

impl Context {
    /// The images to clear, and what to compare the next look with.
    pub(super) async fn find_orphans(
        &self,
        before: &Sightings,
    ) -> Result<(Vec<BuildId>, Sightings)> {
        let functions = self.directory.fresh().await;
        let held = functions.images();
        let held: BTreeSet<BuildId> = held.into_iter().filter_map(ImageId::build).collect();
        if held.is_empty() {
            return Ok((Vec::new(), Sightings::default()));
        }
        self.registry.tree().sync().await?;
        let recorded = picture::recorded_builds(&self.registry).await?;
        let unrecorded: BTreeSet<BuildId> = held.difference(&recorded).copied().collect();
        let twice = unrecorded.intersection(&before.0).copied().collect();
        Ok((twice, Sightings(unrecorded)))
    }

    pub(super) async fn clear_orphan(&self, build: BuildId) -> Result<()> {
        let Some(info) = self.info(build).await else {
            return Ok(());
        };
        if info.managed.as_deref() != Some(&*self.system) {
            return Ok(());
        }
        let image = info.image;
        let key = BuildKey {
            image: image.clone(),
            build,
        };
        if self.registry.images().build(&key).await?.is_some() {
            return Ok(());
        }
        match self.delete_files(build, &DeleteJob::default()).await {
            Ok(()) => tracing::info!(%image, %build, "files without a record are deleted"),
            Err(failure) => {
                let reason = failure.reason;
                tracing::warn!(%image, %build, reason, "files without a record cannot be deleted");
            }
        }
        Ok(())
    }
}
