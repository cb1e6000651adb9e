//! Asking Zuul what it has, and having it fetched.
//!
//! What Zuul says is kept in two places. In the store is what a decision needs, for all stewards and for people: which
//! builds there are, in which formats, and which of them are of no use. In memory is what only the fetching needs:
//! addresses, which may be signed and are nobody else's business. A steward that has to fetch what another one has
//! seen, or itself before it was restarted, asks once more. However a question comes about, its outcome is noted, and
//! nobody asks again before the pause after a failure is over.

mod stall;

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_config::{ImageSource, ZuulImage};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildState, ImageBuild, ImageName, Timestamp, layout};
use nodeyard_plan::images::{Action, BadBuild, Market};
use nodeyard_store::{Result, Tree, TreePath, ext};
use uuid::Uuid;

pub(super) use stall::Zuuls;

use super::build::Running;
use super::context::{Came, Context, key, now};
use super::policy;
use crate::jobs::{Failure, ImportJob, ZuulBuild};
use stall::{Artifacts, Stall};

/// How long a build that is of no use is left alone.
const BAD_FOR: Duration = Duration::from_secs(24 * 60 * 60);
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

    /// Asks Zuul what it has, unless somebody else has just done so.
    pub(super) async fn ask_zuul(&self, image: &ImageName) -> Result<Came> {
        let Some(how) = self.zuul_image(image) else {
            return Ok(Came::ToNothing);
        };
        let stall = self.zuuls.stall(image, &how).await;
        let _asking = stall.asking.lock().await;
        let still = self.confirm(image, &Action::AskZuul, |_| {}).await?;
        if still.is_some() {
            self.question(image, &stall).await?;
        }
        Ok(Came::Through)
    }

    /// Asks, and notes what came of it. False if Zuul did not say anything that makes sense.
    async fn question(&self, image: &ImageName, stall: &Stall) -> Result<bool> {
        let asked = stall.ask(self.timing.zuul_answer).await;
        self.events.polled(image, asked.is_ok());
        if let Err(reason) = &asked {
            tracing::warn!(%image, reason, "Zuul does not say what it has");
        }
        let asked = asked.map(|listing| (stall.offers(&listing), listing.has_more));
        let interval = *stall.how().poll_interval;
        change_market(&**self.registry.tree(), image, |market| {
            let time = now();
            market.asked = Some(time);
            market.bad.retain(|_, bad| bad.until > time);
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
            market.next = Some(later(
                time,
                pause.mul_f64(1.0 + JITTER * (2.0 * fastrand::f64() - 1.0)),
            ));
        })
        .await?;
        Ok(asked.is_ok())
    }

    /// Has a build of Zuul fetched.
    pub(super) async fn import(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<Came> {
        let (build, artifacts) = match self.find(image, zuul_build, formats).await? {
            Find::Found(build, artifacts) => (build, artifacts),
            Find::Gone => return Ok(Came::Through),
            Find::Unknown => return Ok(Came::ToNothing),
        };
        let action = Action::Import {
            zuul_build: zuul_build.into(),
            formats: formats.clone(),
        };
        let Some(claim) = self.claim_image(image, &action).await? else {
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
    ) -> Result<Find> {
        let Some(how) = self.zuul_image(image) else {
            return Ok(Find::Unknown);
        };
        let stall = self.zuuls.stall(image, &how).await;
        if let Some((build, artifacts)) = stall.find(zuul_build, formats) {
            return Ok(Find::Found(build, artifacts));
        }
        let _asking = stall.asking.lock().await;
        // Another may have asked while we waited for our turn.
        if stall.find(zuul_build, formats).is_none()
            && (self.is_pausing(image).await? || !self.question(image, &stall).await?)
        {
            return Ok(Find::Unknown);
        }
        Ok(match stall.find(zuul_build, formats) {
            Some((build, artifacts)) => Find::Found(build, artifacts),
            None => Find::Gone,
        })
    }

    /// Whether Zuul did not answer lately and is left alone for a while.
    async fn is_pausing(&self, image: &ImageName) -> Result<bool> {
        let market = read_market(&**self.registry.tree(), image).await?;
        Ok(market.is_some_and(|market| {
            market.error.is_some() && market.next.is_some_and(|next| next > now())
        }))
    }

    /// Remembers that a build of Zuul is of no use.
    pub(super) async fn spurn(
        &self,
        image: &ImageName,
        fetched: &Fetched,
        failure: &Failure,
    ) -> Result<()> {
        let Fetched {
            zuul_build,
            settings,
        } = fetched;
        tracing::warn!(%image, %zuul_build, reason = failure.reason, "a build of Zuul is of no use");
        change_market(&**self.registry.tree(), image, |market| {
            let since = now();
            let before = market.bad.remove(zuul_build);
            let before = before.filter(|bad| bad.until > since);
            let mut under = before.map(|bad| bad.under).unwrap_or_default();
            under.extend(settings.clone());
            let bad = BadBuild {
                since,
                until: later(since, BAD_FOR),
                reason: failure.reason.clone(),
                under,
            };
            market.bad.insert(zuul_build.clone(), bad);
        })
        .await
    }
}

/// What Zuul said of an image when it was last asked, by whomever.
pub(super) async fn read_market(tree: &dyn Tree, image: &ImageName) -> Result<Option<Market>> {
    ext::read_json(tree, &TreePath::new(layout::image_market(image))?).await
}

async fn change_market(
    tree: &dyn Tree,
    image: &ImageName,
    change: impl Fn(&mut Market),
) -> Result<()> {
    let path = TreePath::new(layout::image_market(image))?;
    ext::change_json(tree, &path, change).await.map(drop)
}

fn later(time: Timestamp, pause: Duration) -> Timestamp {
    Timestamp::from_secs(time.as_secs() + pause.as_secs_f64()).unwrap_or(time)
}
