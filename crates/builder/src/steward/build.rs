//! Having an image built.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, Formats, ImageBuild, ImageName};
use nodeyard_plan::images::{Action, ImageState, Subject};
use nodeyard_store::Result;
use nodeyard_store::lock::LockGuard;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::calls::Answer;
use super::claim::Claim;
use super::context::{Came, Context, Trouble, key, now};
use super::events::BuildEnded;
use super::inquiry::{Found, Stand};
use super::notes::Notes;
use super::progress::Reporter;
use super::zuul::{Fetched, Vain};
use crate::jobs::{
    BuildJob, BuildResult, Failure, FailureKind, Function, ImportJob, Provenance, from_payload,
};

impl Context {
    pub(super) async fn build(
        &self,
        image: &ImageName,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<Came> {
        let action = Action::Build {
            formats: formats.clone(),
        };
        let Some((claim, picture)) = self.claim_image(image, &action).await? else {
            return Ok(Came::ToNothing);
        };
        if self.adopt_any(&picture).await? {
            claim.release().await?;
            return Ok(Came::Through);
        }
        let key = key(image, BuildId::from_u128(Uuid::new_v4().as_u128()));
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some((&*self.hostname).into());
        record.formats = formats.iter().collect();
        let stat = self.registry.images().create_build(&key, &record).await?;
        tracing::info!(%image, build = %key.build, "build begins");
        let build = Running::new(self, key, stat.czxid, formats.clone());
        build.begin(claim).await
    }

    /// Takes over a build that lost its steward.
    pub(super) async fn resume_build(&self, image: &ImageName, build: BuildId) -> Result<Came> {
        let action = Action::ResumeBuild { build };
        let Some((claim, _)) = self.claim_image(image, &action).await? else {
            return Ok(Came::ToNothing);
        };
        let key = key(image, build);
        let Some(stored) = self.registry.images().build(&key).await? else {
            claim.release().await?;
            return Ok(Came::ToNothing);
        };
        tracing::info!(%image, %build, "a build without a steward is taken over");
        let asked = stored.value.formats.iter().map(Box::from).collect();
        let mut running = Running::new(self, key, stored.stat.czxid, asked);
        running.whole = false;
        if let Some(zuul_build) = &stored.value.zuul_build_uuid {
            running = running.importing(self.fetched(image, zuul_build));
        }
        let tree = &**self.registry.tree();
        let reporter = Reporter::begin(tree, image, build, None).await;
        let found = self.inquire_build(&running.key, &running.function()).await;
        reporter.end().await;
        running.end(claim, found).await
    }

    /// Takes away a request that was left when the image was built for it. The store cannot delete a record on the condition that it
    /// is still the same one, so everybody who takes requests away, Python builders too, has the image's lock: between
    /// the look and the deletion, none can go and a later one take its place.
    pub(super) async fn clear_request(&self, image: &ImageName, order: i64) -> Result<Came> {
        let action = Action::ClearRequest { order };
        let Some((claim, _)) = self.claim_image(image, &action).await? else {
            return Ok(Came::ToNothing);
        };
        self.registry.images().delete_build_request(image).await?;
        claim.release().await?;
        Ok(Came::Through)
    }

    pub(super) async fn claim_image(
        &self,
        image: &ImageName,
        action: &Action,
    ) -> Result<Option<(Claim, ImageState)>> {
        let lock = self.registry.images().building_lock(image)?;
        let Some(claim) = Claim::attempt(lock).await? else {
            return Ok(None);
        };
        let unlock = |picture: &mut ImageState| picture.building = false;
        if let Some(picture) = self.confirm(image, action, unlock).await? {
            return Ok(Some((claim, picture)));
        }
        claim.release().await?;
        Ok(None)
    }
}

/// A build that has a record.
pub(super) struct Running<'c> {
    ctx: &'c Context,
    key: BuildKey,
    order: i64,
    asked: BTreeSet<Box<str>>,
    /// The build of Zuul that it is fetched from.
    fetched: Option<Fetched>,
    /// Somebody was asked to make it. Otherwise its failure says nothing of what it would have been made of.
    tried: bool,
    /// Its worker has said itself why it failed, as the answer to the job.
    answered: bool,
    begun: Instant,
    /// It was seen from its beginning on, so that it is known how long it took.
    whole: bool,
}

impl<'c> Running<'c> {
    pub(super) fn new(
        ctx: &'c Context,
        key: BuildKey,
        order: i64,
        asked: BTreeSet<Box<str>>,
    ) -> Self {
        Self {
            ctx,
            key,
            order,
            asked,
            fetched: None,
            tried: true,
            answered: false,
            begun: Instant::now(),
            whole: true,
        }
    }

    /// It is fetched from a build of Zuul.
    pub(super) fn importing(mut self, fetched: Fetched) -> Self {
        self.fetched = Some(fetched);
        self
    }

    fn function(&self) -> Function {
        let image = self.key.image.clone();
        match self.fetched {
            Some(_) => Function::Import(image),
            None => Function::Build(image),
        }
    }

    async fn begin(self, claim: Claim) -> Result<Came> {
        let job = BuildJob {
            image_id: ImageId::from(self.key.build),
            managed: Some((&*self.ctx.system).into()),
            formats: self.asked.iter().cloned().collect(),
            stream: false,
        };
        self.submit(claim, &job).await
    }

    pub(super) async fn begin_import(self, claim: Claim, job: &ImportJob) -> Result<Came> {
        self.submit(claim, job).await
    }

    async fn submit(mut self, claim: Claim, job: &impl Serialize) -> Result<Came> {
        let (ctx, build) = (self.ctx, self.key.build);
        let function = self.function();
        let tree = &**ctx.registry.tree();
        let mut reporter = Reporter::begin(tree, &self.key.image, build, None).await;
        let answer = match ctx.submit(&function, job).await {
            Ok(job) => {
                ctx.follow(&function, build, job, &mut reporter, Stand::of_build)
                    .await
            }
            Err(answer) => answer,
        };
        let found = match answer {
            Answer::Done(data) => match from_payload::<BuildResult>(&function, &data) {
                Ok(result) if result.image_id.build() == Some(build) => Found::Done(result),
                // A worker that knows only the old answer, or garbles the new one.
                _ => ctx.inquire_build(&self.key, &function).await,
            },
            Answer::Failed(failure) => {
                self.answered = true;
                Found::Failed(failure)
            }
            Answer::Lost(reason) => {
                tracing::info!(image = %self.key.image, %build, reason, "the answer to a build was lost");
                ctx.inquire_build(&self.key, &function).await
            }
            Answer::Unsent(reason) => {
                self.tried = false;
                Found::Failed(Failure::unable(reason))
            }
        };
        reporter.end().await;
        self.end(claim, found).await
    }

    async fn end(self, mut claim: Claim, found: Found<BuildResult>) -> Result<Came> {
        let result = match found {
            Found::Done(result) => Ok(result),
            Found::Failed(failure) => Err(failure),
            Found::Nothing => {
                if self.fetched.is_none() {
                    self.note_lost().await?;
                }
                Err(Failure::unable("no worker knows of the build any more"))
            }
        };
        // Before the build can be used: whoever asks where it comes from is told.
        let provenance = result.as_ref().ok().and_then(|r| r.provenance.as_ref());
        if provenance.is_some() {
            self.note_provenance(provenance).await?;
        }
        let stored = loop {
            match self.store(claim.guard(), result.as_ref().ok()).await {
                Err(error) if error.is_connection() => claim.renew().await?,
                stored => break stored?,
            }
        };
        if stored {
            let is_ready = result.is_ok();
            self.note(result).await?;
            if is_ready {
                self.clear_request().await?;
            }
        } else if provenance.is_some() {
            self.note_provenance(None).await?;
        }
        claim.release().await?;
        Ok(Came::Through)
    }

    /// Takes away the request that it was built for, as long as the image is ours.
    async fn clear_request(&self) -> Result<()> {
        let images = self.ctx.registry.images();
        let request = images.build_request(&self.key.image).await?;
        if request.is_some_and(|request| request.czxid < self.order) {
            images.delete_build_request(&self.key.image).await?;
        }
        Ok(())
    }

    /// Whether its worker was stopped, or was unable to make it and another one can be asked. A worker that was unable has
    /// withdrawn its function. What was lost with its worker may have been the reason for that.
    async fn can_be_repeated_at_once(&self, failure: &Failure) -> bool {
        match failure.kind {
            FailureKind::Interrupted => true,
            FailureKind::Unable if self.answered => {
                let functions = self.ctx.directory.fresh().await;
                functions.answers(&self.function())
            }
            _ => false,
        }
    }

    async fn note_lost(&self) -> Result<()> {
        let tree = &**self.ctx.registry.tree();
        Notes::change(tree, &self.key.image, |notes| {
            notes.lose(self.key.build, now());
        })
        .await
    }

    async fn note_provenance(&self, provenance: Option<&Provenance>) -> Result<()> {
        let build = self.key.build;
        let tree = &**self.ctx.registry.tree();
        Notes::change(tree, &self.key.image, |notes| match provenance {
            Some(provenance) => {
                let known = notes.builds.entry(build).or_default();
                known.provenance = Some(provenance.clone());
            }
            None => {
                notes.builds.remove(&build);
            }
        })
        .await
    }

    /// False if somebody else has ended the build, or it is gone.
    async fn store(&self, guard: &LockGuard, result: Option<&BuildResult>) -> Result<bool> {
        let images = self.ctx.registry.images();
        guard.tree().sync().await?;
        let stored = images.build(&self.key).await?;
        let building = stored.filter(|stored| stored.value.state == BuildState::Building);
        let Some(stored) = building else {
            return Ok(false);
        };
        let record = self.record(stored.value, result);
        images.store_build(guard, &self.key, &record).await?;
        Ok(true)
    }

    fn record(&self, mut record: ImageBuild, result: Option<&BuildResult>) -> ImageBuild {
        if let Some(image) = self.ctx.image(&self.key.image) {
            record.username = Some(image.username.into());
            record.python_path = Some(image.python_path.into());
            record.shell_type = image.shell_type.map(Into::into);
        }
        match result {
            Some(result) => {
                record.builder = Some(result.builder.clone());
                record.builder_id = Some(result.builder_id.clone());
                record.formats = result.formats.keys().collect::<Formats>();
                record.set_state(BuildState::Ready, now());
            }
            None => record.set_state(BuildState::Failed, now()),
        }
        record
    }

    async fn note(&self, result: Result<BuildResult, Failure>) -> Result<()> {
        let (ctx, image, build) = (self.ctx, &self.key.image, self.key.build);
        let took = self.begun.elapsed();
        let result = match result {
            Ok(result) => result,
            Err(failure) => {
                ctx.events.built(&BuildEnded {
                    image,
                    took,
                    formats: None,
                    exit_code: failure.exit_code.unwrap_or(1),
                });
                let counts = !self.can_be_repeated_at_once(&failure).await;
                if let Some(fetched) = self.fetched.as_ref().filter(|_| self.tried && counts) {
                    let vain = Vain {
                        key: &self.key,
                        order: self.order,
                        failure: &failure,
                    };
                    // The next one may be better, and does not have to wait for this one.
                    if ctx.spurn(fetched, &vain).await? {
                        return ctx.worked(image, &Subject::Build).await;
                    }
                }
                let trouble = Trouble {
                    subject: Subject::Build,
                    build,
                    order: self.order,
                    reason: failure.reason,
                    counts,
                };
                return ctx.failed(image, trouble).await;
            }
        };
        tracing::info!(%image, %build, builder = %result.builder, "build is ready");
        let formats: Vec<_> = result.formats.iter().map(|(f, i)| (&**f, i)).collect();
        ctx.events.built(&BuildEnded {
            image,
            took,
            formats: Some(&formats),
            exit_code: 0,
        });
        if let Some(fetched) = &self.fetched {
            ctx.unspurn(image, fetched).await?;
        }
        if let Some(provenance) = &result.provenance {
            let sent = provenance.artifacts.values().map(|file| file.sent.size);
            ctx.events.fetched(image, sent.sum());
        }
        let made_less = self.asked.iter().any(|f| !result.formats.contains_key(f));
        Notes::change(&**ctx.registry.tree(), image, |notes| {
            notes.setbacks.remove(&Subject::Build);
            if self.whole {
                notes.durations.add_build(took);
            }
            if made_less {
                notes.builds.entry(build).or_default().asked = self.asked.clone();
            }
        })
        .await
    }
}
