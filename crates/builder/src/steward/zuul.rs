//! Asking Zuul what it has, and having it fetched.
//!
//! What Zuul says is kept in two places. In the store is what a decision needs, for all stewards and for people: which
//! builds there are, in which formats, and which of them are of no use. In memory is what only the fetching needs:
//! addresses, which may be signed and are nobody else's business. A steward that has to fetch what another one has
//! seen asks once more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_config::{ImageSource, ZuulImage};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildState, ImageBuild, ImageName, Timestamp, layout, with_causes};
use nodeyard_plan::images::{Action, BadBuild, Market, Offer};
use nodeyard_store::{Result, Tree, TreePath, ext};
use nodeyard_zuul_api::{Answer, Api, Build, Question};
use uuid::Uuid;

use super::build::Running;
use super::context::{Came, Context, key, now};
use crate::jobs::{Failure, ImportArtifact, ImportJob, ZuulBuild};
use crate::zuul;

/// How long a build that is of no use is left alone.
const BAD_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest pause between two questions while Zuul does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);
/// By how much a pause may be shorter or longer, so that not all stewards ask at once.
const JITTER: f64 = 0.1;
/// How long Zuul may take for one answer.
const ANSWER: Duration = Duration::from_secs(120);

/// The Zuuls that images come from.
#[derive(Debug, Default)]
pub(super) struct Zuuls(Mutex<HashMap<ImageName, Arc<Stall>>>);

/// Where one image comes from.
#[derive(Debug)]
struct Stall {
    how: Box<ZuulImage>,
    api: Api,
    question: Question,
    /// As Zuul said last; none if it was not asked yet.
    builds: Mutex<Option<Arc<[Build]>>>,
}

impl Zuuls {
    /// The place to ask for an image; made anew when the configuration has changed.
    async fn stall(&self, image: &ImageName, how: &ZuulImage) -> Result<Arc<Stall>, String> {
        let known = self.lock().get(image).cloned();
        if let Some(stall) = known.filter(|stall| *stall.how == *how) {
            return Ok(stall);
        }
        let owned = how.clone();
        let client = tokio::task::spawn_blocking(move || zuul::api_client(&owned)).await;
        let client = client.map_err(|_| "the client was not made".to_owned())?;
        let client = client.map_err(|error| with_causes(&error))?;
        let api = Api::new(client, &how.api_url, how.tenant.clone());
        let stall = Arc::new(Stall {
            api: api.map_err(|error| error.to_string())?,
            question: Question {
                project: how.project.clone(),
                job: how.job.clone(),
                pipelines: how.pipelines.clone(),
                branches: how.branches.clone(),
            },
            how: Box::new(how.clone()),
            builds: Mutex::new(None),
        });
        self.lock().insert(image.clone(), Arc::clone(&stall));
        Ok(stall)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ImageName, Arc<Stall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stall {
    async fn ask(&self) -> Result<Arc<[Build]>, String> {
        let known = self.known();
        let asked = self.api.builds(&self.question, known.is_some());
        let answer = tokio::time::timeout(ANSWER, asked)
            .await
            .map_err(|_| format!("Zuul did not answer within {} s", ANSWER.as_secs()))?
            .map_err(|error| with_causes(&error))?;
        let builds: Arc<[Build]> = match (answer, known) {
            (Answer::Builds(builds), _) => builds.into(),
            (Answer::Unchanged, Some(known)) => known,
            (Answer::Unchanged, None) => return Err("Zuul says that nothing has changed".into()),
        };
        *self.builds.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&builds));
        Ok(builds)
    }

    fn known(&self) -> Option<Arc<[Build]>> {
        self.builds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn offer(&self, build: &Build) -> Offer {
        let artifacts = self.how.artifacts.iter();
        let formats = artifacts
            .filter(|wanted| zuul::matching(build, wanted).is_some())
            .map(|wanted| wanted.format.as_str().into());
        Offer {
            zuul_build: build.uuid.as_str().into(),
            end: build.end,
            formats: formats.collect(),
        }
    }

    fn artifacts(
        &self,
        build: &Build,
        formats: &BTreeSet<Box<str>>,
    ) -> Option<BTreeMap<Box<str>, ImportArtifact>> {
        let artifacts = formats.iter().map(|format| {
            let mut known = self.how.artifacts.iter();
            let wanted = known.find(|wanted| wanted.format.as_str() == &**format)?;
            let artifact = zuul::matching(build, wanted)?;
            let import = ImportArtifact {
                name: artifact.name.as_str().into(),
                url: artifact.url.as_str().into(),
                metadata: artifact.metadata.clone(),
            };
            Some((format.clone(), import))
        });
        artifacts.collect()
    }
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
        let still = self.confirm(image, &Action::AskZuul, |_| {}).await?;
        if still.is_none() {
            return Ok(Came::Through);
        }
        let asked = match self.zuuls.stall(image, &how).await {
            Ok(stall) => stall.ask().await.map(|builds| {
                let offers = builds.iter().map(|build| stall.offer(build));
                offers.collect::<Vec<Offer>>()
            }),
            Err(reason) => Err(reason),
        };
        self.events.polled(image, asked.is_ok());
        if let Err(reason) = &asked {
            tracing::warn!(%image, reason, "Zuul does not say what it has");
        }
        let interval = *how.poll_interval;
        change_market(&**self.registry.tree(), image, |market| {
            let time = now();
            market.asked = Some(time);
            market.bad.retain(|_, bad| bad.until > time);
            let pause = match &asked {
                Ok(offers) => {
                    market.offers.clone_from(offers);
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
        Ok(Came::Through)
    }

    /// Has a build of Zuul fetched.
    pub(super) async fn import(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<Came> {
        let Some((build, artifacts)) = self.find(image, zuul_build, formats).await else {
            // What was seen is not there any more; that is what the next question is for.
            change_market(&**self.registry.tree(), image, |market| market.next = None).await?;
            return Ok(Came::ToNothing);
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
            .importing(zuul_build)
            .begin_import(claim, &job)
            .await
    }

    /// What there is to fetch of a build; none if Zuul does not have it any more.
    async fn find(
        &self,
        image: &ImageName,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Option<(ZuulBuild, BTreeMap<Box<str>, ImportArtifact>)> {
        let how = self.zuul_image(image)?;
        let stall = self.zuuls.stall(image, &how).await.ok()?;
        let pick = |builds: &[Build]| {
            let build = builds.iter().find(|build| build.uuid == zuul_build)?;
            Some((describe(build), stall.artifacts(build, formats)?))
        };
        if let Some(found) = stall.known().and_then(|builds| pick(&builds)) {
            return Some(found);
        }
        pick(&stall.ask().await.ok()?)
    }

    /// Remembers that a build of Zuul is of no use.
    pub(super) async fn spurn(
        &self,
        image: &ImageName,
        zuul_build: &str,
        failure: &Failure,
    ) -> Result<()> {
        tracing::warn!(%image, zuul_build, reason = failure.reason, "a build of Zuul is of no use");
        change_market(&**self.registry.tree(), image, |market| {
            let since = now();
            let bad = BadBuild {
                since,
                until: later(since, BAD_FOR),
                reason: failure.reason.clone(),
            };
            market.bad.insert(zuul_build.into(), bad);
        })
        .await
    }
}

fn describe(build: &Build) -> ZuulBuild {
    let text = |text: &Option<String>| text.as_deref().map(Into::into);
    ZuulBuild {
        uuid: build.uuid.as_str().into(),
        end_time: build.end,
        project: text(&build.project),
        pipeline: text(&build.pipeline),
        job: Some(build.job_name.as_str().into()),
        branch: text(&build.branch),
        change: text(&build.change),
        revision: text(&build.revision),
        log_url: text(&build.log_url),
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
