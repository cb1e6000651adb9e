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

use crate::jobs::{ImportArtifact, ZuulBuildInfo};
use crate::zuul;

/// How far down is looked for a build that can be used.
const MAX_BUILDS: usize = 200;

/// The Zuuls that images come from.
#[derive(Debug, Default)]
pub(in crate::steward) struct ZuulSources(Mutex<HashMap<ImageName, Arc<ZuulSource>>>);

/// Where one image comes from.
#[derive(Debug)]
pub(super) struct ZuulSource {
    image_config: Box<ZuulImage>,
    /// Or why nobody can be asked.
    api: Result<ZuulApi, String>,
    query: ZuulBuildQuery,
    /// As Zuul said last; none if it was not asked yet.
    listing: Mutex<Option<Arc<BuildList>>>,
    /// Held by whoever asks, so that nobody asks for what another is about to learn.
    pub(super) fetch_lock: tokio::sync::Mutex<()>,
}

/// What to fetch, by format.
pub(super) type Artifacts = BTreeMap<Box<str>, ImportArtifact>;

impl ZuulSources {
    /// The place to ask for an image; made anew when the configuration has changed, and while nobody can be asked.
    pub(super) async fn get(&self, image: &ImageName, image_config: &ZuulImage) -> Arc<ZuulSource> {
        let known = self.lock().get(image).cloned();
        if let Some(source) =
            known.filter(|source| *source.image_config == *image_config && source.api.is_ok())
        {
            return source;
        }
        let source = Arc::new(ZuulSource {
            api: api(image_config).await,
            query: ZuulBuildQuery {
                project: image_config.project.clone(),
                job: image_config.job.clone(),
                pipelines: image_config.pipelines.clone(),
                branches: image_config.branches.clone(),
            },
            image_config: Box::new(image_config.clone()),
            listing: Mutex::new(None),
            fetch_lock: tokio::sync::Mutex::new(()),
        });
        self.lock().insert(image.clone(), Arc::clone(&source));
        source
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ImageName, Arc<ZuulSource>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn api(image_config: &ZuulImage) -> Result<ZuulApi, String> {
    let owned = image_config.clone();
    let client = tokio::task::spawn_blocking(move || zuul::api_client(&owned)).await;
    let client = client.map_err(|_| "internal error while creating the HTTP client".to_owned())?;
    let client = client.map_err(|error| coded(&error))?;
    ZuulApi::new(client, &image_config.api_url, image_config.tenant.clone())
        .map_err(|error| error.to_string())
}

impl ZuulSource {
    pub(super) fn image_config(&self) -> &ZuulImage {
        &self.image_config
    }

    /// What Zuul has, as far down as it is worth it; or why it does not say.
    pub(super) async fn fetch(
        &self,
        limit: Duration,
        is_worth_more: impl Fn(&[Offer]) -> bool,
    ) -> Result<Arc<BuildList>, String> {
        let asked = tokio::time::timeout(limit, self.fetch_builds(is_worth_more));
        let listing = asked
            .await
            .map_err(|_| format!("Zuul did not respond within {} s", limit.as_secs()))??;
        let listing = Arc::new(listing);
        *self.listing() = Some(Arc::clone(&listing));
        Ok(listing)
    }

    async fn fetch_builds(
        &self,
        is_worth_more: impl Fn(&[Offer]) -> bool,
    ) -> Result<BuildList, String> {
        let api = self.api.as_ref().map_err(Clone::clone)?;
        let known = self.listing().clone();
        let answer = api.builds(&self.query, known.is_some()).await;
        let mut listing = match (answer.map_err(|error| coded(&error))?, known) {
            (BuildsResponse::Builds(listing), _) => listing,
            (BuildsResponse::NotModified, Some(known)) => BuildList::clone(&known),
            (BuildsResponse::NotModified, None) => {
                return Err("unexpected response from Zuul: not modified".into());
            }
        };
        while listing.has_more
            && listing.entries_read < MAX_BUILDS
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
                Err(invalid) => invalid_offer(invalid),
            })
            .collect()
    }

    fn offer(&self, build: &FinishedBuild) -> Offer {
        let artifacts = self.image_config.artifacts.iter();
        let formats = artifacts
            .filter(|wanted| zuul::matching(build, wanted).is_some())
            .map(|wanted| wanted.format.as_str().into());
        Offer {
            zuul_build: build.uuid.as_str().into(),
            end: build.end,
            formats: formats.collect(),
            flaw: None,
        }
    }

    /// What there is to fetch of a build, as Zuul said last.
    pub(super) fn find(
        &self,
        zuul_build: &str,
        formats: &BTreeSet<Box<str>>,
    ) -> Option<(ZuulBuildInfo, Artifacts)> {
        let listing = self.listing().clone()?;
        let build = listing.build(zuul_build)?;
        Some((describe(build), self.artifacts(build, formats)?))
    }

    fn artifacts(&self, build: &FinishedBuild, formats: &BTreeSet<Box<str>>) -> Option<Artifacts> {
        let artifacts = formats.iter().map(|format| {
            let mut known = self.image_config.artifacts.iter();
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
fn invalid_offer(invalid: &InvalidBuild) -> Offer {
    Offer {
        zuul_build: invalid
            .uuid
            .as_deref()
            .unwrap_or("build without an id")
            .into(),
        end: None,
        formats: BTreeSet::new(),
        flaw: Some(invalid.reason.clone()),
    }
}

fn describe(build: &FinishedBuild) -> ZuulBuildInfo {
    let text = |text: &Option<String>| text.as_deref().map(Into::into);
    ZuulBuildInfo {
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
