//! Asking Zuul what it has, and having it fetched.
//!
//! What Zuul says is kept in two places. In the store is what a decision needs, for all stewards and for people: which
//! builds there are, in which formats, and which of them are of no use. In memory is what only the fetching needs:
//! addresses, which may be signed and are nobody else's business. A steward that has to fetch what another one has
//! seen, or itself before it was restarted, asks once more. However a question comes about, one steward asks at a time,
//! its outcome is noted, and nobody asks again before the pause after a failure is over.

mod stall;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_config::{ImageSource, ZuulImage};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, ImageName, layout};
use nodeyard_plan::images::{Action, BadBuild, ImageState, ZuulBuildList, is_worth_more};
use nodeyard_store::{Result, Tree, TreePath, ext};
use uuid::Uuid;

pub(super) use stall::Zuuls;

use super::build::Running;
use super::context::{Came, Context, key, now};
use super::policy;
use crate::jobs::{Failure, FailureKind, ImportJob, ZuulBuild};
use stall::{Artifacts, Stall};

/// How long a build that is of no use is left alone, and the longest for one that only might be of none.
const BAD_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// So many failures that another try might not have, and a build makes room for others.
const MOST_TRIES: u32 = 5;
/// The longest pause between two questions while Zuul does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);
/// By how much a pause may be shorter or longer, so that not all stewards ask at once.
const JITTER: f64 = 0.1;

/// A build of Zuul that is being fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    zuul_build: Box<str>,
    /// Those of the image when this began.
    settings: Option<Box<str>>,
}

/// An import that came to nothing.
pub(super) struct Vain<'v> {
    pub(super) key: &'v BuildKey,
    pub(super) order: i64,
    pub(super) failure: &'v Failure,
}

/// Whether a build that was seen can be fetched.
enum Find {
    Found(ZuulBuild, Artifacts),
    /// Zuul does not have it any more, and what it has instead has been noted.
    Gone,
    /// Zuul did not say.
    Unknown,
}

impl Context {
    fn zuul_image(&self, image: &ImageName) -> Option<Box<ZuulImage>> {
        match self.image(image)?.source {
            ImageSource::Zuul(how) => Some(how),
            ImageSource::Build(_) => None,
        }
    }

    /// Asks Zuul what it has, unless somebody else has just done so or does.
    pub(super) async fn ask_zuul(&self, image: &ImageName) -> Result<Came> {
        let Some(how) = self.zuul_image(image) else {
            return Ok(Came::ToNothing);
        };
        let stall = self.zuuls.stall(image, &how).await;
        let _asking = stall.asking.lock().await;
        if let Some(picture) = self.confirm(image, &Action::AskZuul, |_| {}).await? {
            self.question(image, &stall, &picture).await?;
        }
        Ok(Came::Through)
    }

    /// Asks, unless another steward has done so since the picture was drawn or does so now, and notes what came of it.
    /// False without an answer that makes sense.
    async fn question(
        &self,
        image: &ImageName,
        stall: &Stall,
        picture: &ImageState,
    ) -> Result<bool> {
        if !self.take_turn(image, picture).await? {
            return Ok(false);
        }
        let worth = |offers: &[_]| is_worth_more(picture, offers, now());
        let asked = stall.ask(self.timing.zuul_answer, worth).await;
        self.events.polled(image, asked.is_ok());
        if let Err(reason) = &asked {
            tracing::warn!(%image, reason, "Zuul does not say what it has");
        }
        let asked = asked.map(|listing| (stall.offers(&listing), listing.has_more));
        let interval = *stall.how().poll_interval;
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
                    let longest = LONGEST_PAUSE.max(interval);
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
    async fn take_turn(&self, image: &ImageName, picture: &ImageState) -> Result<bool> {
        let seen = picture.zuul_builds.as_ref().and_then(|market| market.asked);
        let limit = self.timing.zuul_answer;
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
    ) -> Result<Came> {
        let action = Action::Import {
            zuul_build: zuul_build.into(),
            formats: formats.clone(),
        };
        let (build, artifacts) = match self.find(image, zuul_build, formats, &action).await? {
            Find::Found(build, artifacts) => (build, artifacts),
            Find::Gone => return Ok(Came::Through),
            Find::Unknown => return Ok(Came::ToNothing),
        };
        let Some((claim, _)) = self.claim_image(image, &action).await? else {
            return Ok(Came::ToNothing);
        };
        let key = key(image, BuildId::from_u128(Uuid::new_v4().as_u128()));
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some((&*self.hostname).into());
        record.formats = formats.iter().collect();
        record.source = Some("zuul".into());
        record.zuul_build_uuid = Some(zuul_build.into());
        record.zuul_end_time = build.end_time;
        let stat = self.registry.images().create_build(&key, &record).await?;
        tracing::info!(%image, build = %key.build, zuul_build, "import begins");
        let job = ImportJob {
            image_id: ImageId::from(key.build),
            managed: Some((&*self.system).into()),
            build,
            artifacts,
            stream: false,
        };
        let running = Running::new(self, key, stat.czxid, formats.clone());
        running
            .importing(self.fetched(image, zuul_build))
            .begin_import(claim, &job)
            .await
    }

    /// A build of Zuul that is about to be fetched, or was.
    pub(super) fn fetched(&self, image: &ImageName, zuul_build: &str) -> Fetched {
        let how = self.zuul_image(image);
        Fetched {
            zuul_build: zuul_build.into(),
            settings: how.map(|how| policy::settings(&how)),
        }
    }

    /// What there is to fetch of a build. Zuul is asked if this steward has not heard of it.
    async fn find(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
        import: &Action,
    ) -> Result<Find> {
        let Some(how) = self.zuul_image(image) else {
            return Ok(Find::Unknown);
        };
        let stall = self.zuuls.stall(image, &how).await;
        if let Some((build, artifacts)) = stall.find(zuul_build, formats) {
            return Ok(Find::Found(build, artifacts));
        }
        let _asking = stall.asking.lock().await;
        // Another may have asked while we waited for our turn, or have begun to fetch it.
        if stall.find(zuul_build, formats).is_none() {
            let Some(picture) = self.confirm(image, import, |_| {}).await? else {
                return Ok(Find::Unknown);
            };
            if is_pausing(&picture) || !self.question(image, &stall, &picture).await? {
                return Ok(Find::Unknown);
            }
        }
        Ok(match stall.find(zuul_build, formats) {
            Some((build, artifacts)) => Find::Found(build, artifacts),
            None => Find::Gone,
        })
    }

    /// Remembers that a build of Zuul was tried in vain. True if it is left alone from now on, and others have their
    /// turn.
    pub(super) async fn spurn(&self, fetched: &Fetched, vain: &Vain<'_>) -> Result<bool> {
        let Fetched {
            zuul_build,
            settings,
        } = fetched;
        let (image, failure) = (&vain.key.image, vain.failure);
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
                until: since + self.left_alone(tries),
                reason: match tries {
                    0..MOST_TRIES => failure.reason.clone(),
                    _ => format!("it has failed {tries} times: {}", failure.reason),
                },
                tries,
                build: Some(vain.key.build),
                order: vain.order,
                under,
            };
            market.bad.insert(zuul_build.clone(), bad);
        })
        .await?;
        let bad = market.bad.get(zuul_build);
        let is_left = bad.is_some_and(|bad| bad.until > bad.since);
        if is_left {
            tracing::warn!(%image, %zuul_build, reason = failure.reason, "a build of Zuul is of no use");
        }
        Ok(is_left)
    }

    /// For how long a build of Zuul is left alone that has failed so often, or that is of no use however often it is
    /// tried. The longer it has failed, the longer: what is wrong may be here, and be mended.
    fn left_alone(&self, tries: u32) -> Duration {
        match tries {
            0 => BAD_FOR,
            1..MOST_TRIES => Duration::ZERO,
            _ => {
                let doublings = (tries - MOST_TRIES).min(16);
                let longer = self.pace.longest_retry.saturating_mul(1 << doublings);
                longer.min(BAD_FOR)
            }
        }
    }

    /// Forgets that a build of Zuul was tried in vain, since it is here.
    pub(super) async fn unspurn(&self, image: &ImageName, fetched: &Fetched) -> Result<()> {
        change_market(&**self.registry.tree(), image, |market| {
            market.bad.remove(&fetched.zuul_build);
        })
        .await
        .map(drop)
    }
}

/// Whether Zuul did not answer lately and is left alone for a while.
fn is_pausing(picture: &ImageState) -> bool {
    picture.zuul_builds.as_ref().is_some_and(|market| {
        market.error.is_some() && market.next.is_some_and(|next| next > now())
    })
}

/// What Zuul said of an image when it was last asked, by whomever.
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
