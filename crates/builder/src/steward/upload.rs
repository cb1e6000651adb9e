//! Having a build uploaded to a provider.

use std::collections::BTreeMap;

use nodeyard_image::ImageId;
use nodeyard_model::{
    BuildId, ImageBuild, ImageName, ImageUpload, ProviderName, UploadKey, UploadState,
};
use nodeyard_plan::images::{Action, ImageState, Subject, UploadRef};
use nodeyard_store::lock::LockGuard;
use nodeyard_store::{Result, TreePath, ext};
use tokio::time::Instant;

use super::calls::Answer;
use super::claim::Claim;
use super::context::{Came, Context, Trouble, key, now};
use super::inquiry::{Found, Stand};
use super::notes::Notes;
use super::progress::Reporter;
use crate::jobs::{
    Failure, FailureKind, Function, UploadDeleteJob, UploadJob, UploadResult, from_payload,
};

impl Context {
    pub(super) async fn upload(
        &self,
        image: &ImageName,
        build: BuildId,
        provider: &ProviderName,
    ) -> Result<Came> {
        let action = Action::Upload {
            build,
            provider: provider.clone(),
        };
        let Some(claim) = self.claim_upload(image, build, provider, &action).await? else {
            return Ok(Came::ToNothing);
        };
        let build = key(image, build);
        let images = self.registry.images();
        let Some(built) = images.build(&build).await? else {
            claim.release().await?;
            return Ok(Came::ToNothing);
        };
        let mut record = ImageUpload::new(UploadState::Uploading, now());
        take_login(&mut record, &built.value);
        let (upload, _) = images.create_upload(&build, provider, &record).await?;
        tracing::info!(%image, build = %build.build, %provider, upload = %upload.upload, "upload begins");
        let uploading = Uploading::new(self, upload, built.value, built.stat.czxid);
        uploading.begin(claim).await
    }

    /// Finds out what became of an upload that lost its steward.
    pub(super) async fn settle_upload(
        &self,
        image: &ImageName,
        upload: &UploadRef,
    ) -> Result<Came> {
        let action = Action::SettleUpload(upload.clone());
        let UploadRef {
            build, provider, ..
        } = upload;
        let Some(claim) = self.claim_upload(image, *build, provider, &action).await? else {
            return Ok(Came::ToNothing);
        };
        tracing::info!(%image, %upload, "an upload without a steward is taken over");
        let build = key(image, *build);
        let built = self.registry.images().build(&build).await?;
        let Some(built) = built else {
            claim.release().await?;
            return Ok(Came::ToNothing);
        };
        let found = self
            .inquire_upload(build.build, upload.upload, provider)
            .await;
        let key = UploadKey {
            build,
            provider: provider.clone(),
            upload: upload.upload,
        };
        let mut uploading = Uploading::new(self, key, built.value, built.stat.czxid);
        uploading.whole = false;
        uploading.end(claim, found).await
    }

    async fn claim_upload(
        &self,
        image: &ImageName,
        build: BuildId,
        provider: &ProviderName,
        action: &Action,
    ) -> Result<Option<Claim>> {
        let key = key(image, build);
        let lock = self.registry.images().uploading_lock(&key, provider)?;
        let Some(claim) = Claim::attempt(lock).await? else {
            return Ok(None);
        };
        let unlock = |picture: &mut ImageState| {
            if let Some(build) = picture.builds.get_mut(&build) {
                build.uploading.remove(provider);
            }
        };
        if self.confirm(image, action, unlock).await?.is_some() {
            return Ok(Some(claim));
        }
        claim.release().await?;
        // Locking has brought the build back as an empty ghost if it was gone.
        let path = TreePath::new(nodeyard_model::layout::build(&key))?;
        let tree = &**self.registry.tree();
        let ghost = ext::get_opt(tree, &path).await?;
        if ghost.is_some_and(|record| record.data.is_empty()) {
            ext::delete_recursive(tree, &path).await?;
        }
        Ok(None)
    }
}

fn take_login(upload: &mut ImageUpload, build: &ImageBuild) {
    upload.username.clone_from(&build.username);
    upload.python_path.clone_from(&build.python_path);
    upload.shell_type.clone_from(&build.shell_type);
}

/// An upload that has a record.
struct Uploading<'c> {
    ctx: &'c Context,
    key: UploadKey,
    built: ImageBuild,
    /// Where the build has its place in the order of the store's writes.
    order: i64,
    begun: Instant,
    /// It was seen from its beginning on, so that it is known how long it took.
    whole: bool,
}

impl<'c> Uploading<'c> {
    fn new(ctx: &'c Context, key: UploadKey, built: ImageBuild, order: i64) -> Self {
        Self {
            ctx,
            key,
            built,
            order,
            begun: Instant::now(),
            whole: true,
        }
    }

    async fn begin(&self, claim: Claim) -> Result<Came> {
        let ctx = self.ctx;
        let UploadKey {
            build,
            provider,
            upload,
        } = &self.key;
        let id = ImageId::from(build.build);
        let function = Function::Upload(id.clone());
        let job = UploadJob {
            provider: provider.clone(),
            image_name: Some(build.image.clone()),
            managed: Some((&*ctx.system).into()),
            upload_id: Some(*upload),
            external_name: None,
            metadata: BTreeMap::new(),
        };
        let tree = &**ctx.registry.tree();
        let mut reporter = Reporter::begin(tree, &build.image, build.build, Some(provider)).await;
        let answer = match ctx.submit(&function, &job).await {
            Ok(job) => {
                let stand = |info| Stand::of_upload(info, *upload, provider);
                ctx.follow(&function, build.build, job, &mut reporter, stand)
                    .await
            }
            Err(answer) => answer,
        };
        let inquire = ctx.inquire_upload(build.build, *upload, provider);
        let found = match answer {
            Answer::Done(data) => match from_payload::<UploadResult>(&function, &data) {
                Ok(result) => Found::Done(result),
                Err(_) => inquire.await,
            },
            Answer::Failed(failure) => Found::Failed(failure),
            Answer::Lost(reason) => {
                tracing::info!(image = %build.image, build = %build.build, %provider, reason, "the answer to an upload was lost");
                inquire.await
            }
            Answer::Unsent(reason) => Found::Failed(Failure::unable(reason)),
        };
        reporter.end().await;
        self.end(claim, found).await
    }

    async fn end(&self, mut claim: Claim, found: Found<UploadResult>) -> Result<Came> {
        let result = match found {
            Found::Done(result) => Ok(result),
            Found::Failed(failure) => Err(failure),
            Found::Nothing => Err(Failure::unable("no worker knows of the upload any more")),
        };
        let stored = loop {
            match self.store(claim.guard(), result.as_ref().ok()).await {
                Err(error) if error.is_connection() => match claim.renew().await {
                    Err(error) if error.is_no_node() => break false,
                    renewed => renewed?,
                },
                stored => break stored?,
            }
        };
        match result {
            Ok(_) if stored => self.succeeded().await?,
            // Nobody remembers it: it must not stay in the cloud.
            Ok(result) => self.undo(result).await,
            Err(failure) => self.failed(failure).await?,
        }
        claim.release().await?;
        Ok(Came::Through)
    }

    /// False if the record is gone.
    async fn store(&self, guard: &LockGuard, result: Option<&UploadResult>) -> Result<bool> {
        let images = self.ctx.registry.images();
        guard.tree().sync().await?;
        let Some(stored) = images.upload(&self.key).await? else {
            return Ok(false);
        };
        // Otherwise somebody else has ended it, or wants it deleted, and its record leads to it.
        if stored.value.state == UploadState::Uploading {
            let record = self.record(stored.value, result);
            images.store_upload(guard, &self.key, &record).await?;
        }
        Ok(true)
    }

    fn record(&self, mut record: ImageUpload, result: Option<&UploadResult>) -> ImageUpload {
        match result {
            Some(result) => {
                take_login(&mut record, &self.built);
                record.external_id = Some(result.external_id.clone());
                record.external_name = Some(result.external_name.clone());
                record.format = Some(result.format.clone());
                record.set_state(UploadState::Ready, now());
                record
            }
            // As Nodepool leaves it: a state and nothing else.
            None => ImageUpload::new(UploadState::Failed, now()),
        }
    }

    async fn succeeded(&self) -> Result<()> {
        let UploadKey {
            build, provider, ..
        } = &self.key;
        tracing::info!(image = %build.image, build = %build.build, %provider, "upload is ready");
        let took = self.begun.elapsed();
        self.ctx.events.uploaded(&build.image, provider, took);
        let subject = self.subject();
        Notes::change(&**self.ctx.registry.tree(), &build.image, |notes| {
            notes.setbacks.remove(&subject);
            if self.whole {
                notes.durations.add_upload(provider, took);
            }
        })
        .await
    }

    async fn failed(&self, failure: Failure) -> Result<()> {
        let build = &self.key.build;
        let trouble = Trouble {
            subject: self.subject(),
            build: build.build,
            order: self.order,
            counts: failure.kind != FailureKind::Interrupted,
            reason: failure.reason,
        };
        self.ctx.failed(&build.image, trouble).await
    }

    fn subject(&self) -> Subject {
        Subject::Upload {
            provider: self.key.provider.clone(),
        }
    }

    async fn undo(&self, result: UploadResult) {
        let UploadKey {
            build,
            provider,
            upload,
        } = &self.key;
        let job = UploadDeleteJob {
            image: build.image.clone(),
            image_id: ImageId::from(build.build),
            external_id: Some(result.external_id),
            managed: Some((&*self.ctx.system).into()),
            upload_id: Some(*upload),
        };
        let function = Function::UploadDelete(provider.clone());
        let limit = self.ctx.timing.cloud_call;
        let answer = self.ctx.call(&function, &job, limit).await;
        tracing::warn!(image = %build.image, build = %build.build, %provider, ?answer,
            "the record of an upload is gone, so it is deleted");
    }
}
