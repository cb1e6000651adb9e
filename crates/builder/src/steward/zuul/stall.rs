//! Where images come from, and what only the fetching needs to know of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_config::ZuulImage;
use nodeyard_model::{ImageName, coded};
use nodeyard_plan::images::Offer;
use nodeyard_zuul_api::{
    BuildList, BuildsResponse, FinishedBuild, InvalidBuild, ZuulApi, ZuulBuildQuery,
};

use crate::jobs::{ImportArtifact, ZuulBuild};
use crate::zuul;

/// How far down is looked for a build that can be used.
const MOST_BUILDS: usize = 200;

/// The Zuuls that images come from.
#[derive(Debug, Default)]
pub(in crate::steward) struct Zuuls(Mutex<HashMap<ImageName, Arc<Stall>>>);

/// Where one image comes from.
#[derive(Debug)]
pub(super) struct Stall {
    how: Box<ZuulImage>,
    /// Or why nobody can be asked.
    api: Result<ZuulApi, String>,
    query: ZuulBuildQuery,
    /// As Zuul said last; none if it was not asked yet.
    listing: Mutex<Option<Arc<BuildList>>>,
    /// Held by whoever asks, so that nobody asks for what another is about to learn.
    pub(super) asking: tokio::sync::Mutex<()>,
}

/// What to fetch, by format.
pub(super) type Artifacts = BTreeMap<Box<str>, ImportArtifact>;

impl Zuuls {
    /// The place to ask for an image; made anew when the configuration has changed, and while nobody can be asked.
    pub(super) async fn stall(&self, image: &ImageName, how: &ZuulImage) -> Arc<Stall> {
        let known = self.lock().get(image).cloned();
        if let Some(stall) = known.filter(|stall| *stall.how == *how && stall.api.is_ok()) {
            return stall;
        }
        let stall = Arc::new(Stall {
            api: api(how).await,
            query: ZuulBuildQuery {
                project: how.project.clone(),
                job: how.job.clone(),
                pipelines: how.pipelines.clone(),
                branches: how.branches.clone(),
            },
            how: Box::new(how.clone()),
            listing: Mutex::new(None),
            asking: tokio::sync::Mutex::new(()),
        });
        self.lock().insert(image.clone(), Arc::clone(&stall));
        stall
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ImageName, Arc<Stall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn api(how: &ZuulImage) -> Result<ZuulApi, String> {
    let owned = how.clone();
    let client = tokio::task::spawn_blocking(move || zuul::api_client(&owned)).await;
    let client = client.map_err(|_| "the client was not made".to_owned())?;
    let client = client.map_err(|error| coded(&error))?;
    ZuulApi::new(client, &how.api_url, how.tenant.clone()).map_err(|error| error.to_string())
}

impl Stall {
    pub(super) fn how(&self) -> &ZuulImage {
        &self.how
    }

    /// What Zuul has, as far down as it is worth it; or why it does not say.
    pub(super) async fn ask(
        &self,
        limit: Duration,
        is_worth_more: impl Fn(&[Offer]) -> bool,
    ) -> Result<Arc<BuildList>, String> {
        let asked = tokio::time::timeout(limit, self.listen(is_worth_more));
        let listing = asked
            .await
            .map_err(|_| format!("Zuul did not answer within {} s", limit.as_secs()))??;
        let listing = Arc::new(listing);
        *self.listing() = Some(Arc::clone(&listing));
        Ok(listing)
    }

    async fn listen(&self, is_worth_more: impl Fn(&[Offer]) -> bool) -> Result<BuildList, String> {
        let api = self.api.as_ref().map_err(Clone::clone)?;
        let known = self.listing().clone();
        let answer = api.builds(&self.query, known.is_some()).await;
        let mut listing = match (answer.map_err(|error| coded(&error))?, known) {
            (BuildsResponse::Builds(listing), _) => listing,
            (BuildsResponse::NotModified, Some(known)) => BuildList::clone(&known),
            (BuildsResponse::NotModified, None) => {
                return Err("Zuul says that nothing has changed".into());
            }
        };
        while listing.has_more
            && listing.entries_read < MOST_BUILDS
            && is_worth_more(&self.offers(&listing))
        {
            let further = api.fetch_more(&self.query, &mut listing).await;
            further.map_err(|error| coded(&error))?;
        }
        Ok(listing)
    }

    /// What a decision needs to know of what Zuul has.
    pub(super) fn offers(&self, listing: &BuildList) -> Vec<Offer> {
        let builds = listing.builds.iter();
        builds
            .map(|read| match read {
                Ok(build) => self.offer(build),
                Err(odd) => flawed(odd),
            })
            .collect()
    }

    fn offer(&self, build: &FinishedBuild) -> Offer {
        let artifacts = self.how.artifacts.iter();
        let formats = artifacts
            .filter(|wanted| zuul::matching(build, wanted).is_some())
            .map(|wanted| wanted.format.as_str().into());
        Offer {
            zuul_build: build.uuid.as_str().into(),
            end: build.end,
            formats: formats.collect(),
            invalid_reason: None,
        }
    }

    /// What there is to fetch of a build, as Zuul said last.
    pub(super) fn find(
        &self,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Option<(ZuulBuild, Artifacts)> {
        let listing = self.listing().clone()?;
        let build = listing.build(zuul_build)?;
        Some((describe(build), self.artifacts(build, formats)?))
    }

    fn artifacts(&self, build: &FinishedBuild, formats: &BTreeSet<Box<str>>) -> Option<Artifacts> {
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

    fn listing(&self) -> MutexGuard<'_, Option<Arc<BuildList>>> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So that people are told of it.
fn flawed(odd: &InvalidBuild) -> Offer {
    Offer {
        zuul_build: odd.uuid.as_deref().unwrap_or("build without an id").into(),
        end: None,
        formats: BTreeSet::new(),
        invalid_reason: Some(odd.reason.clone()),
    }
}

fn describe(build: &FinishedBuild) -> ZuulBuild {
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
