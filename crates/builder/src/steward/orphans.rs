//! Images on workers without a record (orphans).
//!
//! A record is written before a job is submitted, so an image of this installation without a record is an orphan: its worker was
//! offline when the record was deleted or when the build was considered lost. An orphan must be found by two consecutive scans,
//! and its worker must report that it was built for this installation.
//!
//! A lost build that is still useful is adopted ([`StewardContext::adopt`]). Others are cancelled and their files deleted.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, ImageName, Timestamp};
use nodeyard_plan::images::{ImageOrigin, ImageState};
use nodeyard_store::Result;

use super::calls::CallOutcome;
use super::context::{StewardContext, now};
use super::image_state;
use super::notes::ImageNotes;
use super::renewable_lock::RenewableLock;
use crate::jobs::{DeleteJob, Function, ImageInfo, LocalState};

/// The builds that had no record at the last scan.
#[derive(Debug, Default)]
pub(super) struct OrphanCandidates(BTreeSet<BuildId>);

impl StewardContext {
    /// Returns the orphans, and the candidates for the next scan.
    pub(super) async fn find_orphans(
        &self,
        before: &OrphanCandidates,
    ) -> Result<(Vec<BuildId>, OrphanCandidates)> {
        let unrecorded = self.unrecorded().await?;
        let twice = unrecorded.intersection(&before.0).copied().collect();
        Ok((twice, OrphanCandidates(unrecorded)))
    }

    async fn unrecorded(&self) -> Result<BTreeSet<BuildId>> {
        let functions = self.directory.refresh().await;
        let held = functions.images();
        let held: BTreeSet<BuildId> = held.into_iter().filter_map(ImageId::build).collect();
        if held.is_empty() {
            return Ok(held);
        }
        self.registry.tree().sync().await?;
        let recorded = image_state::recorded_builds(&self.registry).await?;
        Ok(held.difference(&recorded).copied().collect())
    }

    /// Returns the state of an image of this installation that has no record.
    async fn orphan(&self, build: BuildId) -> Result<Option<ImageInfo>> {
        let info = self.info(build).await;
        let ours = info.filter(|info| info.managed.as_deref() == Some(&*self.system));
        let Some(info) = ours else { return Ok(None) };
        let stored = self.registry.images().build(&key_of(&info, build)).await?;
        Ok(stored.is_none().then_some(info))
    }

    /// Adopts an orphan if it is a useful lost build. Otherwise deletes it, unless deletions are left to other stewards.
    pub(super) async fn handle_orphan(&self, build: BuildId) -> Result<()> {
        let Some(info) = self.orphan(build).await? else {
            return Ok(());
        };
        if self.is_lost(&info.image, build).await? {
            let lock = self.registry.images().building_lock(&info.image)?;
            let lock = RenewableLock::try_acquire(lock).await?;
            let functions = self.directory.refresh().await;
            let mut image_state = self.load_image_state(&info.image, &functions).await?;
            match lock {
                Some(lock) => {
                    image_state.building = false;
                    let adopted = self.adopt(&image_state, &info, build).await;
                    lock.release().await?;
                    if adopted? {
                        return Ok(());
                    }
                }
                // Another steward may be adopting it.
                None if !has_build_under_way(&image_state) => return Ok(()),
                None => {}
            }
        }
        if self.cleans {
            self.delete_orphan(&info, build).await;
        }
        Ok(())
    }

    async fn is_lost(&self, image: &ImageName, build: BuildId) -> Result<bool> {
        let notes = ImageNotes::read(&**self.registry.tree(), image).await?;
        Ok(notes.lost.contains_key(&build))
    }

    /// Adopts a lost build instead of starting a new one. The caller holds the lock of the image, which `image_state` must not
    /// contain.
    pub(super) async fn adopt_lost_build(&self, image_state: &ImageState) -> Result<bool> {
        for build in self.unrecorded().await? {
            if self.is_lost(&image_state.image, build).await?
                && let Some(info) = self.orphan(build).await?
                && self.adopt(image_state, &info, build).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Creates a record for a useful lost build, so that it is resumed.
    async fn adopt(
        &self,
        image_state: &ImageState,
        info: &ImageInfo,
        build: BuildId,
    ) -> Result<bool> {
        if !is_wanted(image_state, info, now()) {
            return Ok(false);
        }
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some(info.builder.clone());
        let policy = image_state.policy.iter();
        record.formats = policy.flat_map(|policy| &policy.formats).collect();
        let key = key_of(info, build);
        self.registry.images().create_build(&key, &record).await?;
        tracing::info!(image = %info.image, %build, state = ?info.state, "adopted lost build");
        ImageNotes::change(&**self.registry.tree(), &info.image, |notes| {
            notes.lost.remove(&build);
        })
        .await?;
        Ok(true)
    }

    async fn delete_orphan(&self, info: &ImageInfo, build: BuildId) {
        let image: &ImageName = &info.image;
        if info.state == LocalState::Building {
            let function = Function::Cancel(ImageId::from(build));
            // Its files are deleted after the next scan.
            match self.call(&function, &(), self.timing.call_timeout).await {
                CallOutcome::Done(_) => {
                    tracing::info!(%image, %build, "cancelled build without record");
                }
                outcome => {
                    tracing::warn!(%image, %build, ?outcome, "failed to cancel build without record");
                }
            }
            return;
        }
        match self.delete_files(build, &DeleteJob::default()).await {
            Ok(()) => tracing::info!(%image, %build, "deleted files without record"),
            Err(failure) => {
                let reason = failure.reason;
                tracing::warn!(%image, %build, reason, "failed to delete files without record");
            }
        }
    }
}

fn key_of(info: &ImageInfo, build: BuildId) -> BuildKey {
    BuildKey {
        image: info.image.clone(),
        build,
    }
}

/// Returns whether a lost build can replace a new build: there is no newer build, running build or newer request.
fn is_wanted(image_state: &ImageState, info: &ImageInfo, now: Timestamp) -> bool {
    let Some(policy) = &image_state.policy else {
        return false;
    };
    let ImageOrigin::Built { rebuild_age } = policy.origin else {
        return false;
    };
    let has_formats = match info.state {
        LocalState::Building => true,
        LocalState::Ready => policy
            .formats
            .iter()
            .all(|format| info.formats.contains_key(format)),
        LocalState::Failed => false,
    };
    let builds = image_state.builds.values();
    let is_newest = builds
        .filter(|build| build.state == BuildState::Ready)
        .all(|build| build.since < info.since);
    let is_asked_for = image_state
        .request
        .is_none_or(|request| request.made <= info.since);
    has_formats
        && is_newest
        && is_asked_for
        && !has_build_under_way(image_state)
        && now.since(info.since) < rebuild_age
}

fn has_build_under_way(image_state: &ImageState) -> bool {
    let mut builds = image_state.builds.values();
    builds.any(|build| build.state == BuildState::Building)
}
