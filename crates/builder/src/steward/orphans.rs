//! Images on workers that no record accounts for.
//!
//! A record is written before a worker is asked for anything, so an image of ours without a record is left over: its
//! worker was away when the record went, or when the build was given up as lost. Two looks in a row must show it, and the
//! worker must say that it made the image for this installation. What somebody else has built stays until they delete it.
//!
//! A build that was given up as lost and is still of use gets a record again ([`Context::adopt`]). Any other is cancelled, and
//! its files are deleted.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, ImageName, Timestamp};
use nodeyard_plan::images::{ImageOrigin, ImageState};
use nodeyard_store::Result;

use super::calls::Answer;
use super::claim::Claim;
use super::context::{Context, now};
use super::notes::Notes;
use super::picture;
use crate::jobs::{DeleteJob, Function, ImageInfo, LocalState};

/// What was without a record at the last look.
#[derive(Debug, Default)]
pub(super) struct Sightings(BTreeSet<BuildId>);

impl Context {
    /// The images to clear, and what to compare the next look with.
    pub(super) async fn find_orphans(
        &self,
        before: &Sightings,
    ) -> Result<(Vec<BuildId>, Sightings)> {
        let unrecorded = self.unrecorded().await?;
        let twice = unrecorded.intersection(&before.0).copied().collect();
        Ok((twice, Sightings(unrecorded)))
    }

    async fn unrecorded(&self) -> Result<BTreeSet<BuildId>> {
        let functions = self.directory.fresh().await;
        let held = functions.images();
        let held: BTreeSet<BuildId> = held.into_iter().filter_map(ImageId::build).collect();
        if held.is_empty() {
            return Ok(held);
        }
        self.registry.tree().sync().await?;
        let recorded = picture::recorded_builds(&self.registry).await?;
        Ok(held.difference(&recorded).copied().collect())
    }

    /// What a worker says of an image of this installation that has no record.
    async fn orphan(&self, build: BuildId) -> Result<Option<ImageInfo>> {
        let info = self.info(build).await;
        let ours = info.filter(|info| info.managed.as_deref() == Some(&*self.system));
        let Some(info) = ours else { return Ok(None) };
        let stored = self.registry.images().build(&key_of(&info, build)).await?;
        Ok(stored.is_none().then_some(info))
    }

    /// Takes over an image without a record if it is a lost build that is of use. Otherwise removes it, unless that is left to
    /// other stewards.
    pub(super) async fn settle_orphan(&self, build: BuildId) -> Result<()> {
        let Some(info) = self.orphan(build).await? else {
            return Ok(());
        };
        if self.is_lost(&info.image, build).await? {
            let lock = self.registry.images().building_lock(&info.image)?;
            let claim = Claim::attempt(lock).await?;
            let functions = self.directory.fresh().await;
            let mut picture = self.draw(&info.image, &functions).await?;
            match claim {
                Some(claim) => {
                    picture.building = false;
                    let adopted = self.adopt(&picture, &info, build).await;
                    claim.release().await?;
                    if adopted? {
                        return Ok(());
                    }
                }
                // Somebody may be about to take it over.
                None if !has_build_under_way(&picture) => return Ok(()),
                None => {}
            }
        }
        if self.cleans {
            self.clear_orphan(&info, build).await;
        }
        Ok(())
    }

    async fn is_lost(&self, image: &ImageName, build: BuildId) -> Result<bool> {
        let notes = Notes::read(&**self.registry.tree(), image).await?;
        Ok(notes.lost.contains_key(&build))
    }

    /// Takes over a lost build in place of one that is about to begin. The caller has the lock of the image, and `picture` does
    /// not show it.
    pub(super) async fn adopt_any(&self, picture: &ImageState) -> Result<bool> {
        for build in self.unrecorded().await? {
            if self.is_lost(&picture.image, build).await?
                && let Some(info) = self.orphan(build).await?
                && self.adopt(picture, &info, build).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records a lost build as one under way, if it is of use. Whoever resumes that asks its worker what became of it.
    async fn adopt(&self, picture: &ImageState, info: &ImageInfo, build: BuildId) -> Result<bool> {
        if !is_wanted(picture, info, now()) {
            return Ok(false);
        }
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some(info.builder.clone());
        let policy = picture.policy.iter();
        record.formats = policy.flat_map(|policy| &policy.formats).collect();
        let key = key_of(info, build);
        self.registry.images().create_build(&key, &record).await?;
        tracing::info!(image = %info.image, %build, state = ?info.state, "took over a lost build");
        Notes::change(&**self.registry.tree(), &info.image, |notes| {
            notes.lost.remove(&build);
        })
        .await?;
        Ok(true)
    }

    async fn clear_orphan(&self, info: &ImageInfo, build: BuildId) {
        let image: &ImageName = &info.image;
        if info.state == LocalState::Building {
            let function = Function::Cancel(ImageId::from(build));
            // Its files go with the next look.
            match self.call(&function, &(), self.timing.call).await {
                Answer::Done(_) => {
                    tracing::info!(%image, %build, "cancelled a build without a record");
                }
                answer => {
                    tracing::warn!(%image, %build, ?answer, "failed to cancel a build without a record");
                }
            }
            return;
        }
        match self.delete_files(build, &DeleteJob::default()).await {
            Ok(()) => tracing::info!(%image, %build, "files without a record are deleted"),
            Err(failure) => {
                let reason = failure.reason;
                tracing::warn!(%image, %build, reason, "files without a record cannot be deleted");
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

/// Whether a lost build is what a build would make now: nothing newer is there or under way, and nobody has asked for a
/// newer one.
fn is_wanted(picture: &ImageState, info: &ImageInfo, now: Timestamp) -> bool {
    let Some(policy) = &picture.policy else {
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
    let builds = picture.builds.values();
    let is_newest = builds
        .filter(|build| build.state == BuildState::Ready)
        .all(|build| build.since < info.since);
    let is_asked_for = picture
        .request
        .is_none_or(|request| request.made <= info.since);
    has_formats
        && is_newest
        && is_asked_for
        && !has_build_under_way(picture)
        && now.since(info.since) < rebuild_age
}

fn has_build_under_way(picture: &ImageState) -> bool {
    let mut builds = picture.builds.values();
    builds.any(|build| build.state == BuildState::Building)
}
