//! Selects the upload that a launch uses, and records the result of the launch for the trial of its build.
//!
//! [`nodeyard_plan::canary`] decides; this module stores its state in one small record per image. Most images have
//! none, and launches from an image without a trial write nothing.

use std::collections::HashMap;

use nodeyard_model::{
    BuildId, BuildState, ImageName, ImageUpload, ProviderName, Timestamp, UploadKey, UploadState,
    layout,
};
use nodeyard_plan::canary::{CanaryLaunch, CanaryPolicy, CanaryState, TrialOutcome, Uploaded};
use nodeyard_store::registry::{ImageId, ImageRecord, ImageShape};
use nodeyard_store::view::View;
use nodeyard_store::{Result, Tree, TreePath, ext};

use crate::context::Context;
use crate::provider::ready_uploads;

/// Returns the trials and the pin of an image; empty if there are none.
pub async fn read(tree: &dyn Tree, image: &ImageName) -> Result<CanaryState> {
    let path = TreePath::new(layout::image_canary(image))?;
    Ok(ext::read_json(tree, &path).await?.unwrap_or_default())
}

/// Changes the state of an image atomically. The change may be applied several times.
pub async fn change(
    tree: &dyn Tree,
    image: &ImageName,
    change: impl Fn(&mut CanaryState),
) -> Result<CanaryState> {
    let path = TreePath::new(layout::image_canary(image))?;
    ext::change_json(tree, &path, change).await
}

/// Returns the builds of an image that have an upload to any provider, the newest first.
fn uploaded_builds(images: &View<ImageShape>, image: &ImageName) -> Vec<BuildId> {
    // By when they were built, since uploads of an older one may have taken longer; where nothing is known of the build,
    // by when it first came to a provider.
    let mut built: HashMap<BuildId, (BuildState, Timestamp)> = HashMap::new();
    let mut uploaded: HashMap<BuildId, Timestamp> = HashMap::new();
    images.for_each(|item| match (&item.id, &*item.value) {
        (ImageId::Build(key), ImageRecord::Build(build)) if key.image == *image => {
            built.insert(key.build, (build.state, build.state_time));
        }
        (ImageId::Upload(key), ImageRecord::Upload(upload))
            if key.build.image == *image && upload.state == UploadState::Ready =>
        {
            let first = uploaded.entry(key.build.build).or_insert(upload.state_time);
            *first = upload.state_time.min(*first);
        }
        _ => {}
    });
    let builds = uploaded.into_iter();
    let mut builds: Vec<(Timestamp, BuildId)> = builds
        .filter_map(|(build, first)| match built.get(&build) {
            Some((BuildState::Ready, since)) => Some((*since, build)),
            Some(_) => None,
            None => Some((first, build)),
        })
        .collect();
    builds.sort_unstable_by(|a, b| b.cmp(a));
    builds.into_iter().map(|(_, build)| build).collect()
}

impl Context {
    fn canary_policy(&self, image: &ImageName) -> Option<CanaryPolicy> {
        let config = self.config.borrow();
        let canary = config.images.get(image.as_str())?.canary.as_ref()?;
        Some(CanaryPolicy::new(
            canary.share,
            canary.successes,
            canary.failure_limit,
        ))
    }

    /// Returns the upload that the next machine of this provider boots from.
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
        let uploaded = Uploaded {
            anywhere: &uploaded_builds(&self.images, image),
            here: &builds(&uploads),
        };
        let launches = state.launches(uploaded, self.canary_policy(image).as_ref());
        let build = launches.map(|launches| launches.pick(fastrand::f64()));
        let mut uploads = uploads.into_iter();
        Ok(uploads.find(|(key, _)| Some(key.build.build) == build))
    }

    /// Records the result of a launch from an upload. A failed write is only logged.
    pub(crate) async fn judge_upload(&self, key: &UploadKey, failure: Option<&str>) {
        let (image, build) = (&key.build.image, key.build.build);
        let Some(policy) = self.canary_policy(image) else {
            return;
        };
        let uploaded = Uploaded {
            anywhere: &uploaded_builds(&self.images, image),
            here: &builds(&ready_uploads(&self.images, image, &key.provider)),
        };
        let launch = CanaryLaunch { build, failure };
        let recorded = self.record(image, launch, uploaded, &policy).await;
        match recorded {
            Ok(Some(TrialOutcome::Passed { .. })) => {
                tracing::info!(%image, %build, "trial of new build succeeded; all launches use it");
            }
            Ok(Some(TrialOutcome::RolledBack { reason, .. })) => {
                tracing::error!(%image, %build, reason, "trial of new build failed; launches use an earlier one");
            }
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%image, %build, error, "failed to record result of launch for build");
            }
        }
    }

    async fn record(
        &self,
        image: &ImageName,
        launch: CanaryLaunch<'_>,
        uploaded: Uploaded<'_>,
        policy: &CanaryPolicy,
    ) -> Result<Option<TrialOutcome>> {
        let tree = &**self.registry.tree();
        let known = read(tree, image).await?;
        if known.on_trial(uploaded.anywhere) != Some(launch.build) {
            return Ok(None);
        }
        let now: Timestamp = self.clock.now();
        let state = change(tree, image, |state| {
            state.record(launch, uploaded, policy, now);
        })
        .await?;
        let trial = state.trials.get(&launch.build);
        Ok(trial.and_then(|trial| trial.ended.clone()))
    }
}

fn builds(uploads: &[(UploadKey, ImageUpload)]) -> Vec<BuildId> {
    uploads.iter().map(|(key, _)| key.build.build).collect()
}
