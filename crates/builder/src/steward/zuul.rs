//! Polls Zuul for builds of images and imports them.
//!
//! The store holds what decisions need: the builds, their formats, and which builds are bad. Download URLs may be signed and are
//! kept only in memory, so a steward that imports a build found by another steward, or before its restart, polls Zuul again.
//! Only one steward polls at a time, and failures are recorded so that all stewards back off.

mod source;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_config::{ImageSource, ZuulImage};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, ImageName, layout};
use nodeyard_plan::images::{Action, BadBuild, ImageState, ZuulBuildList, is_worth_more};
use nodeyard_store::{Result, Tree, TreePath, ext};
use uuid::Uuid;

pub(super) use source::ZuulSources;

use super::build::BuildAttempt;
use super::context::{StewardContext, WorkOutcome, key, now};
use super::policy;
use crate::jobs::{FailureKind, ImportJob, JobFailure, ZuulBuildInfo};
use source::{Artifacts, ZuulSource};

/// The maximum time for which a Zuul build is marked bad.
const MAX_BAD_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of possibly transient failures after which a Zuul build is marked bad.
const MAX_TRIES: u32 = 5;
/// The maximum backoff while polling Zuul fails.
const MAX_PAUSE: Duration = Duration::from_secs(30 * 60);
/// The relative jitter of the polling interval.
const JITTER: f64 = 0.1;

/// The Zuul build of an import.
#[derive(Debug)]
pub(super) struct ImportSource {
    zuul_build: Box<str>,
    /// The settings fingerprint of the image when the import started.
    settings: Option<Box<str>>,
}

/// A failed import.
pub(super) struct FailedImport<'v> {
    pub(super) key: &'v BuildKey,
    pub(super) order: i64,
    pub(super) failure: &'v JobFailure,
}

/// The result of looking up a Zuul build.
enum BuildLookup {
    Found(ZuulBuildInfo, Artifacts),
    /// Zuul no longer has the build; its current builds have been recorded.
    Gone,
    /// Zuul could not be queried.
    Unknown,
}

impl StewardContext {
    fn zuul_image(&self, image: &ImageName) -> Option<Box<ZuulImage>> {
        match self.image(image)?.source {
            ImageSource::Zuul(image_config) => Some(image_config),
            ImageSource::Build(_) => None,
        }
    }

    /// Polls Zuul for builds, unless another steward is doing so or has just done so.
    pub(super) async fn poll_zuul(&self, image: &ImageName) -> Result<WorkOutcome> {
        let Some(image_config) = self.zuul_image(image) else {
            return Ok(WorkOutcome::Skipped);
        };
        let source = self.zuul_sources.get(image, &image_config).await;
        let _guard = source.fetch_lock.lock().await;
        if let Some(image_state) = self.confirm(image, &Action::AskZuul, |_| {}).await? {
            self.fetch_offers(image, &source, &image_state).await?;
        }
        Ok(WorkOutcome::Done)
    }

    /// Polls Zuul and records the result, unless another steward has done so since `image_state` was loaded or is doing so. Returns
    /// `false` without a valid response.
    async fn fetch_offers(
        &self,
        image: &ImageName,
        source: &ZuulSource,
        image_state: &ImageState,
    ) -> Result<bool> {
        if !self.acquire_poll_turn(image, image_state).await? {
            return Ok(false);
        }
        let is_worth_fetching = |offers: &[_]| is_worth_more(image_state, offers, now());
        let asked = source
            .fetch(self.timing.zuul_timeout, is_worth_fetching)
            .await;
        self.events.polled(image, asked.is_ok());
        if let Err(reason) = &asked {
            tracing::warn!(%image, reason, "failed to query Zuul for builds");
        }
        let asked = asked.map(|listing| (source.offers(&listing), listing.has_more));
        let interval = *source.image_config().poll_interval;
        change_market(&**self.registry.tree(), image, |market| {
            let time = now();
            market.asked = Some(time);
            market.asking = None;
            market.request = image_state.request.map(|request| request.order);
            let pause = match &asked {
                Ok((offers, has_more)) => {
                    market.offers.clone_from(offers);
                    market.has_more = *has_more;
                    market.failures = 0;
                    market.error = None;
                    interval
                }
                Err(reason) => {
                    market.failures = market.failures.saturating_add(1);
                    market.error = Some(reason.clone());
                    let doublings = market.failures.saturating_sub(1).min(16);
                    let longest = MAX_PAUSE.max(interval);
                    interval.saturating_mul(1 << doublings).min(longest)
                }
            };
            let offers = &market.offers;
            market.bad.retain(|zuul_build, bad| {
                let is_offered = || offers.iter().any(|offer| offer.zuul_build == *zuul_build);
                bad.until > time || bad.tries > 0 && is_offered()
            });
            market.next = Some(time + pause.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0)));
        })
        .await?;
        Ok(asked.is_ok())
    }

    /// Acquires the turn to poll Zuul. It expires, so that another steward can poll if this one fails.
    async fn acquire_poll_turn(&self, image: &ImageName, image_state: &ImageState) -> Result<bool> {
        let seen = image_state
            .zuul_builds
            .as_ref()
            .and_then(|market| market.asked);
        let limit = self.timing.zuul_timeout;
        let is_ours = AtomicBool::new(false);
        change_market(&**self.registry.tree(), image, |market| {
            let time = now();
            let is_free = market.asking.is_none_or(|until| until <= time) && market.asked == seen;
            is_ours.store(is_free, Ordering::Relaxed);
            if is_free {
                market.asking = Some(time + limit + limit / 2);
            }
        })
        .await?;
        Ok(is_ours.into_inner())
    }

    /// Imports a Zuul build.
    pub(super) async fn import(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<WorkOutcome> {
        let action = Action::Import {
            zuul_build: zuul_build.into(),
            formats: formats.clone(),
        };
        let (build, artifacts) = match self.find_build(image, zuul_build, formats, &action).await? {
            BuildLookup::Found(build, artifacts) => (build, artifacts),
            BuildLookup::Gone => return Ok(WorkOutcome::Done),
            BuildLookup::Unknown => return Ok(WorkOutcome::Skipped),
        };
        let Some((lock, _)) = self.lock_image(image, &action).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        let key = key(image, BuildId::from_u128(Uuid::new_v4().as_u128()));
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some((&*self.hostname).into());
        record.formats = formats.iter().collect();
        record.source = Some("zuul".into());
        record.zuul_build_uuid = Some(zuul_build.into());
        record.zuul_end_time = build.end_time;
        let stat = self.registry.images().create_build(&key, &record).await?;
        tracing::info!(%image, build = %key.build, zuul_build, "started import");
        let job = ImportJob {
            image_id: ImageId::from(key.build),
            managed: Some((&*self.system).into()),
            build,
            artifacts,
            stream: false,
        };
        let attempt = BuildAttempt::new(self, key, stat.czxid, formats.clone());
        attempt
            .with_import(self.import_source(image, zuul_build))
            .submit_import(lock, &job)
            .await
    }

    /// Returns the import source for a Zuul build.
    pub(super) fn import_source(&self, image: &ImageName, zuul_build: &str) -> ImportSource {
        let image_config = self.zuul_image(image);
        ImportSource {
            zuul_build: zuul_build.into(),
            settings: image_config.map(|image_config| policy::settings(&image_config)),
        }
    }

    /// Finds the artifacts of a build. Polls Zuul if this steward does not know the build.
    async fn find_build(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
        import: &Action,
    ) -> Result<BuildLookup> {
        let Some(image_config) = self.zuul_image(image) else {
            return Ok(BuildLookup::Unknown);
        };
        let source = self.zuul_sources.get(image, &image_config).await;
        if let Some((build, artifacts)) = source.find(zuul_build, formats) {
            return Ok(BuildLookup::Found(build, artifacts));
        }
        let _guard = source.fetch_lock.lock().await;
        // Another task may have polled Zuul or started the import in the meantime.
        if source.find(zuul_build, formats).is_none() {
            let Some(image_state) = self.confirm(image, import, |_| {}).await? else {
                return Ok(BuildLookup::Unknown);
            };
            if is_backing_off(&image_state)
                || !self.fetch_offers(image, &source, &image_state).await?
            {
                return Ok(BuildLookup::Unknown);
            }
        }
        Ok(match source.find(zuul_build, formats) {
            Some((build, artifacts)) => BuildLookup::Found(build, artifacts),
            None => BuildLookup::Gone,
        })
    }

    /// Records a failed import of a Zuul build. Returns `true` if the build is now marked bad, so that other builds are imported.
    pub(super) async fn mark_bad(
        &self,
        import: &ImportSource,
        failed: &FailedImport<'_>,
    ) -> Result<bool> {
        let ImportSource {
            zuul_build,
            settings,
        } = import;
        let (image, failure) = (&failed.key.image, failed.failure);
        let market = change_market(&**self.registry.tree(), image, |market| {
            let since = now();
            let before = market.bad.remove(zuul_build);
            let before = before.filter(|bad| bad.until > since || bad.tries > 0);
            let earlier = before.as_ref().map_or(0, |bad| bad.tries);
            let mut under = before.map(|bad| bad.under).unwrap_or_default();
            let tries = match failure.kind {
                FailureKind::Failed => 0,
                _ if settings.iter().all(|settings| under.contains(settings)) => earlier + 1,
                _ => 1,
            };
            under.extend(settings.clone());
            let bad = BadBuild {
                since,
                until: since + self.bad_duration(tries),
                reason: match tries {
                    0..MAX_TRIES => failure.reason.clone(),
                    _ => format!("failed {tries} times: {}", failure.reason),
                },
                tries,
                build: Some(failed.key.build),
                order: failed.order,
                under,
            };
            market.bad.insert(zuul_build.clone(), bad);
        })
        .await?;
        let bad = market.bad.get(zuul_build);
        let is_bad = bad.is_some_and(|bad| bad.until > bad.since);
        if is_bad {
            tracing::warn!(%image, %zuul_build, reason = failure.reason, "failed to import Zuul build; not retrying it for now");
        }
        Ok(is_bad)
    }

    /// Returns how long a Zuul build is marked bad after this number of failures; zero tries stand for a permanent failure. Grows
    /// exponentially, because the cause may be on our side and be fixed.
    fn bad_duration(&self, tries: u32) -> Duration {
        match tries {
            0 => MAX_BAD_DURATION,
            1..MAX_TRIES => Duration::ZERO,
            _ => {
                let doublings = (tries - MAX_TRIES).min(16);
                let longer = self.pace.longest_retry.saturating_mul(1 << doublings);
                longer.min(MAX_BAD_DURATION)
            }
        }
    }

    /// Removes the bad mark of a Zuul build after a successful import.
    pub(super) async fn clear_bad(&self, image: &ImageName, import: &ImportSource) -> Result<()> {
        change_market(&**self.registry.tree(), image, |market| {
            market.bad.remove(&import.zuul_build);
        })
        .await
        .map(drop)
    }
}

/// Returns whether polling Zuul is backing off after a failure.
fn is_backing_off(image_state: &ImageState) -> bool {
    image_state.zuul_builds.as_ref().is_some_and(|market| {
        market.error.is_some() && market.next.is_some_and(|next| next > now())
    })
}

/// Reads the result of the last poll of Zuul for an image.
pub async fn read_market(tree: &dyn Tree, image: &ImageName) -> Result<Option<ZuulBuildList>> {
    ext::read_json(tree, &TreePath::new(layout::image_zuul_builds(image))?).await
}

async fn change_market(
    tree: &dyn Tree,
    image: &ImageName,
    change: impl Fn(&mut ZuulBuildList),
) -> Result<ZuulBuildList> {
    let path = TreePath::new(layout::image_zuul_builds(image))?;
    ext::change_json(tree, &path, change).await
}
