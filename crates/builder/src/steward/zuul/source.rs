//! Zuul clients by image, with the builds and artifact URLs of their last response.

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

/// The maximum number of builds to read when searching for a usable one.
const MAX_BUILDS: usize = 200;

/// The Zuul sources by image.
#[derive(Debug, Default)]
pub(in crate::steward) struct ZuulSources(Mutex<HashMap<ImageName, Arc<ZuulSource>>>);

/// The Zuul source of one image.
#[derive(Debug)]
pub(super) struct ZuulSource {
    image_config: Box<ZuulImage>,
    /// The API client, or why it could not be created.
    api: Result<ZuulApi, String>,
    query: ZuulBuildQuery,
    /// The last response of Zuul.
    listing: Mutex<Option<Arc<BuildList>>>,
    /// Held while polling, so that concurrent tasks do not repeat a poll.
    pub(super) fetch_lock: tokio::sync::Mutex<()>,
}

/// The artifacts to import, by format.
pub(super) type Artifacts = BTreeMap<Box<str>, ImportArtifact>;

impl ZuulSources {
    /// Returns the source of an image. It is recreated when the configuration has changed or the client could not be created.
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

    /// Fetches builds from Zuul, as many pages as are worth it.
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

    /// Converts a response to the offers that the plan needs.
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
            invalid_reason: None,
        }
    }

    /// Finds the artifacts of a build in the last response.
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

/// Converts an invalid build to an offer that is shown to users.
fn invalid_offer(invalid: &InvalidBuild) -> Offer {
    Offer {
        zuul_build: invalid
            .uuid
            .as_deref()
            .unwrap_or("build without an id")
            .into(),
        end: None,
        formats: BTreeSet::new(),
        invalid_reason: Some(invalid.reason.clone()),
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
