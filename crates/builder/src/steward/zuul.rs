//! Asking Zuul what it has, and having it fetched.
//!
//! What Zuul says is kept in two places. In the store is what a decision needs, for all stewards and for people: which
//! builds there are, in which formats, and which of them are of no use. In memory is what only the fetching needs:
//! addresses, which may be signed and are nobody else's business. A steward that has to fetch what another one has
//! seen, or itself before it was restarted, asks once more. However a question comes about, one steward asks at a time,
//! its outcome is noted, and nobody asks again before the pause after a failure is over.

mod source;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_config::{ImageSource, ZuulImage};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, ImageName, layout};
use nodeyard_plan::images::{Action, BadBuild, Market, Picture, is_worth_more};
use nodeyard_store::{Result, Tree, TreePath, ext};
use uuid::Uuid;

pub(super) use source::ZuulSources;

use super::build::BuildAttempt;
use super::context::{StewardContext, WorkOutcome, key, now};
use super::policy;
use crate::jobs::{FailureKind, ImportJob, JobFailure, ZuulBuildInfo};
use source::{Artifacts, ZuulSource};

/// How long a build that is of no use is left alone, and the longest for one that only might be of none.
const MAX_BAD_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// So many failures that another try might not have, and a build makes room for others.
const MAX_TRIES: u32 = 5;
/// The longest pause between two questions while Zuul does not answer.
const MAX_PAUSE: Duration = Duration::from_secs(30 * 60);
/// By how much a pause may be shorter or longer, so that not all stewards ask at once.
const JITTER: f64 = 0.1;

/// A build of Zuul that is being fetched.
#[derive(Debug)]
pub(super) struct ImportSource {
    zuul_build: Box<str>,
    /// Those of the image when this began.
    settings: Option<Box<str>>,
}

/// An import that came to nothing.
pub(super) struct FailedImport<'v> {
    pub(super) key: &'v BuildKey,
    pub(super) order: i64,
    pub(super) failure: &'v JobFailure,
}

/// Whether a build that was seen can be fetched.
enum BuildLookup {
    Found(ZuulBuildInfo, Artifacts),
    /// Zuul does not have it any more, and what it has instead has been noted.
    Gone,
    /// Zuul did not say.
    Unknown,
}

impl StewardContext {
    fn zuul_image(&self, image: &ImageName) -> Option<Box<ZuulImage>> {
        match self.image(image)?.source {
            ImageSource::Zuul(image_config) => Some(image_config),
            ImageSource::Build(_) => None,
        }
    }

    /// Asks Zuul what it has, unless somebody else has just done so or does.
    pub(super) async fn poll_zuul(&self, image: &ImageName) -> Result<WorkOutcome> {
        let Some(image_config) = self.zuul_image(image) else {
            return Ok(WorkOutcome::Skipped);
        };
        let source = self.zuul_sources.get(image, &image_config).await;
        let _guard = source.fetch_lock.lock().await;
        if let Some(picture) = self.confirm(image, &Action::AskZuul, |_| {}).await? {
            self.fetch_offers(image, &source, &picture).await?;
        }
        Ok(WorkOutcome::Done)
    }

    /// Asks, unless another steward has done so since the picture was drawn or does so now, and notes what came of it.
    /// False without an answer that makes sense.
    async fn fetch_offers(
        &self,
        image: &ImageName,
        source: &ZuulSource,
        picture: &Picture,
    ) -> Result<bool> {
        if !self.acquire_poll_turn(image, picture).await? {
            return Ok(false);
        }
        let is_worth_fetching = |offers: &[_]| is_worth_more(picture, offers, now());
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
            market.request = picture.request.map(|request| request.order);
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

    /// Whether it is this steward that asks. If it is gone before it has an answer, others do after a while.
    async fn acquire_poll_turn(&self, image: &ImageName, picture: &Picture) -> Result<bool> {
        let seen = picture.market.as_ref().and_then(|market| market.asked);
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

    /// Has a build of Zuul fetched.
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

    /// A build of Zuul that is about to be fetched, or was.
    pub(super) fn import_source(&self, image: &ImageName, zuul_build: &str) -> ImportSource {
        let image_config = self.zuul_image(image);
        ImportSource {
            zuul_build: zuul_build.into(),
            settings: image_config.map(|image_config| policy::settings(&image_config)),
        }
    }

    /// What there is to fetch of a build. Zuul is asked if this steward has not heard of it.
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
        // Another may have asked while we waited for our turn, or have begun to fetch it.
        if source.find(zuul_build, formats).is_none() {
            let Some(picture) = self.confirm(image, import, |_| {}).await? else {
                return Ok(BuildLookup::Unknown);
            };
            if is_backing_off(&picture) || !self.fetch_offers(image, &source, &picture).await? {
                return Ok(BuildLookup::Unknown);
            }
        }
        Ok(match source.find(zuul_build, formats) {
            Some((build, artifacts)) => BuildLookup::Found(build, artifacts),
            None => BuildLookup::Gone,
        })
    }

    /// Remembers that a build of Zuul was tried in vain. True if it is left alone from now on, and others have their
    /// turn.
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

    /// For how long a build of Zuul is left alone that has failed so often, or that is of no use however often it is
    /// tried. The longer it has failed, the longer: what is wrong may be here, and be mended.
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

    /// Forgets that a build of Zuul was tried in vain, since it is here.
    pub(super) async fn clear_bad(&self, image: &ImageName, import: &ImportSource) -> Result<()> {
        change_market(&**self.registry.tree(), image, |market| {
            market.bad.remove(&import.zuul_build);
        })
        .await
        .map(drop)
    }
}

/// Whether Zuul did not answer lately and is left alone for a while.
fn is_backing_off(picture: &Picture) -> bool {
    picture.market.as_ref().is_some_and(|market| {
        market.error.is_some() && market.next.is_some_and(|next| next > now())
    })
}

/// What Zuul said of an image when it was last asked, by whomever.
pub async fn read_market(tree: &dyn Tree, image: &ImageName) -> Result<Option<Market>> {
    ext::read_json(tree, &TreePath::new(layout::image_zuul_builds(image))?).await
}

async fn change_market(
    tree: &dyn Tree,
    image: &ImageName,
    change: impl Fn(&mut Market),
) -> Result<Market> {
    let path = TreePath::new(layout::image_zuul_builds(image))?;
    ext::change_json(tree, &path, change).await
}
