//! Which upload of an image a launch uses, and what its outcome says of the build.
//!
//! The decision is [`nodeyard_plan::canary`]'s; this is where its state is kept, one small record for each image. Most
//! images have none, and launches from an image without a trial write nothing.

use nodeyard_model::{BuildId, ImageName, ImageUpload, ProviderName, Timestamp, UploadKey, layout};
use nodeyard_plan::canary::{self, CanaryPolicy, CanaryState, Ended};
use nodeyard_store::{Result, Tree, TreePath, ext};

use crate::context::Context;
use crate::provider::ready_uploads;

/// What is known of an image's builds; nothing, if nobody has said or tried anything.
pub async fn read(tree: &dyn Tree, image: &ImageName) -> Result<CanaryState> {
    let path = TreePath::new(layout::image_canary(image))?;
    Ok(ext::read_json(tree, &path).await?.unwrap_or_default())
}

/// Changes it, whoever else does so at the same time. The change may be made several times.
pub async fn change(
    tree: &dyn Tree,
    image: &ImageName,
    change: impl Fn(&mut CanaryState),
) -> Result<CanaryState> {
    let path = TreePath::new(layout::image_canary(image))?;
    ext::change_json(tree, &path, change).await
}

impl Context {
    fn canary_policy(&self, image: &ImageName) -> Option<CanaryPolicy> {
        let config = self.config.borrow();
        let canary = config.images.get(image.as_str())?.canary.as_ref()?;
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Some(CanaryPolicy {
            share: number(canary.share),
            successes: number(canary.successes),
            failure_limit: number(canary.failure_limit),
        })
    }

    /// The upload that the next machine of this provider boots from.
    pub(crate) async fn choose_upload(
        &self,
        image: &ImageName,
        provider: &ProviderName,
    ) -> Result<Option<(UploadKey, ImageUpload)>> {
        let mut uploads = ready_uploads(&self.images, image, provider);
        // Where there is no choice, nothing has to be known.
        if uploads.len() <= 1 {
            return Ok(uploads.pop());
        }
        let state = read(&**self.registry.tree(), image).await?;
        let builds: Vec<BuildId> = uploads.iter().map(|(key, _)| key.build.build).collect();
        let policy = self.canary_policy(image);
        let place = canary::choose(&builds, policy.as_ref(), &state, fastrand::f64());
        Ok(place.and_then(|place| uploads.into_iter().nth(place)))
    }

    /// A launch from an upload has ended. Failures to write it down are only that.
    pub(crate) async fn judge_upload(&self, key: &UploadKey, failure: Option<&str>) {
        let (image, build) = (&key.build.image, key.build.build);
        let Some(policy) = self.canary_policy(image) else {
            return;
        };
        let uploads = ready_uploads(&self.images, image, &key.provider);
        let others = uploads.iter().filter(|(other, _)| other.build != key.build);
        let others = others.count();
        let judged = self.record(image, build, failure, others, &policy).await;
        match judged {
            Ok(Some(Ended::Passed { .. })) => {
                tracing::info!(%image, %build, "a new build has proved itself; all launches use it");
            }
            Ok(Some(Ended::TakenBack { reason, .. })) => {
                tracing::error!(%image, %build, reason, "a new build is taken back; launches use the one before it");
            }
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%image, %build, error, "how a build does is not written down");
            }
        }
    }

    async fn record(
        &self,
        image: &ImageName,
        build: BuildId,
        failure: Option<&str>,
        others: usize,
        policy: &CanaryPolicy,
    ) -> Result<Option<Ended>> {
        let tree = &**self.registry.tree();
        let known = read(tree, image).await?;
        if known
            .trials
            .get(&build)
            .is_some_and(|trial| trial.ended.is_some())
        {
            return Ok(None);
        }
        let now: Timestamp = self.clock.now();
        let state = change(tree, image, |state| {
            state.record(build, failure, others, policy, now);
        })
        .await?;
        Ok(state
            .trials
            .get(&build)
            .and_then(|trial| trial.ended.clone()))
    }
}
