//! Records of images: builds, uploads, and the flags for pausing and requesting builds.

use std::collections::BTreeSet;

use bytes::Bytes;
use nodeyard_model::{
    BuildId, BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, ProviderName, Record as _,
    UploadId, UploadKey, layout,
};

use super::{Attempt, ImageShape, Patience, Registry, Stored, new_id, path, store};
use crate::error::{Error, Result};
use crate::ext;
use crate::lock::{Lock, LockGuard};
use crate::path::TreePath;
use crate::tree::{CreateMode, Stat};
use crate::view::View;

#[derive(Debug, Clone, Copy)]
pub struct Images<'a> {
    pub(super) registry: &'a Registry,
}

impl Images<'_> {
    pub fn view(&self) -> Result<View<ImageShape>> {
        self.registry.view(layout::IMAGES, ImageShape)
    }

    /// Returns all images that were ever built or requested.
    pub async fn names(&self) -> Result<BTreeSet<ImageName>> {
        self.names_in(&path(layout::IMAGES)?).await
    }

    pub async fn is_paused(&self, image: &ImageName) -> Result<bool> {
        Ok(self.flag(layout::image_pause(image)).await?.is_some())
    }

    /// Pauses an image. Fails with [`Error::NoNode`] if the image has no record.
    pub async fn pause(&self, image: &ImageName) -> Result<()> {
        let flag = path(layout::image_pause(image))?;
        let create = self
            .registry
            .tree
            .create(&flag, Bytes::new(), CreateMode::Persistent);
        match create.await {
            Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Unpauses an image. Returns false if it was not paused.
    pub async fn unpause(&self, image: &ImageName) -> Result<bool> {
        ext::delete_opt(&*self.registry.tree, &path(layout::image_pause(image))?).await
    }

    /// Requests a build.
    pub async fn request_build(&self, image: &ImageName) -> Result<()> {
        ext::ensure_path(&*self.registry.tree, &path(layout::build_request(image))?).await
    }

    /// Returns the stat of the build request, if there is one. Its `ctime` is the time of the request.
    pub async fn build_request(&self, image: &ImageName) -> Result<Option<Stat>> {
        self.flag(layout::build_request(image)).await
    }

    /// Deletes the build request. Returns false if there was none.
    pub async fn delete_build_request(&self, image: &ImageName) -> Result<bool> {
        ext::delete_opt(&*self.registry.tree, &path(layout::build_request(image))?).await
    }

    pub async fn create_build(&self, key: &BuildKey, build: &ImageBuild) -> Result<Stat> {
        let dir = path(layout::builds(&key.image))?;
        let mode = CreateMode::Persistent;
        let created = self
            .registry
            .create(&dir, &path(layout::build(key))?, build.to_json(), mode)
            .await?;
        Ok(created.stat)
    }

    pub async fn build(&self, key: &BuildKey) -> Result<Option<Stored<ImageBuild>>> {
        self.registry.get(&path(layout::build(key))?).await
    }

    pub async fn builds(&self, image: &ImageName) -> Result<Vec<(BuildKey, Stored<ImageBuild>)>> {
        let list: Vec<(BuildId, _)> = self.registry.list(&path(layout::builds(image))?).await?;
        let key = |build| BuildKey {
            image: image.clone(),
            build,
        };
        Ok(list
            .into_iter()
            .map(|(id, build)| (key(id), build))
            .collect())
    }

    /// Returns the builds in a state, newest first.
    pub async fn newest_builds(
        &self,
        image: &ImageName,
        state: BuildState,
    ) -> Result<Vec<(BuildKey, Stored<ImageBuild>)>> {
        let mut builds = self.builds(image).await?;
        builds.retain(|(_, build)| build.value.state == state);
        builds.sort_by_key(|(_, build)| std::cmp::Reverse(build.value.state_time));
        Ok(builds)
    }

    pub async fn store_build(
        &self,
        guard: &LockGuard,
        key: &BuildKey,
        build: &ImageBuild,
    ) -> Result<Stat> {
        store(guard, &path(layout::build(key))?, build).await
    }

    /// Deletes the build and the records of its uploads.
    pub async fn delete_build(&self, key: &BuildKey) -> Result<()> {
        ext::delete_recursive(&*self.registry.tree, &path(layout::build(key))?).await
    }

    /// Returns the lock for building the image.
    pub fn building_lock(&self, image: &ImageName) -> Result<Lock> {
        Ok(self.registry.locks.lock(path(layout::builds_lock(image))?))
    }

    /// Locks an existing build.
    pub async fn lock_build(
        &self,
        key: &BuildKey,
        patience: Patience,
    ) -> Result<Attempt<ImageBuild>> {
        let dir = path(layout::build_lock(key))?;
        let lock = self.registry.locks.lock(dir).of_existing();
        let build = path(layout::build(key))?;
        self.registry.lock_and_read(&lock, &build, patience).await
    }

    pub async fn create_upload(
        &self,
        build: &BuildKey,
        provider: &ProviderName,
        upload: &ImageUpload,
    ) -> Result<(UploadKey, Stat)> {
        let dir = path(layout::uploads(build, provider))?;
        let mode = CreateMode::PersistentSequential;
        let created = self
            .registry
            .create(&dir, &dir.unnamed_child(), upload.to_json(), mode)
            .await?;
        let key = UploadKey {
            build: build.clone(),
            provider: provider.clone(),
            upload: new_id(&created)?,
        };
        Ok((key, created.stat))
    }

    pub async fn upload(&self, key: &UploadKey) -> Result<Option<Stored<ImageUpload>>> {
        self.registry.get(&path(layout::upload(key))?).await
    }

    /// Returns whether any image has a record of this upload, valid or not.
    pub async fn knows_upload(
        &self,
        build: BuildId,
        provider: &ProviderName,
        upload: UploadId,
    ) -> Result<bool> {
        for image in self.names().await? {
            let key = UploadKey {
                build: BuildKey { image, build },
                provider: provider.clone(),
                upload,
            };
            let record = path(layout::upload(&key))?;
            if self.registry.tree.stat(&record).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the uploads of a build to one provider.
    pub async fn uploads(
        &self,
        build: &BuildKey,
        provider: &ProviderName,
    ) -> Result<Vec<(UploadKey, Stored<ImageUpload>)>> {
        let dir = path(layout::uploads(build, provider))?;
        let list: Vec<(UploadId, _)> = self.registry.list(&dir).await?;
        let key = |upload| UploadKey {
            build: build.clone(),
            provider: provider.clone(),
            upload,
        };
        Ok(list
            .into_iter()
            .map(|(id, upload)| (key(id), upload))
            .collect())
    }

    /// Returns the providers with uploads of a build.
    pub async fn providers(&self, build: &BuildKey) -> Result<BTreeSet<ProviderName>> {
        self.names_in(&path(layout::build_providers(build))?).await
    }

    pub async fn store_upload(
        &self,
        guard: &LockGuard,
        key: &UploadKey,
        upload: &ImageUpload,
    ) -> Result<Stat> {
        store(guard, &path(layout::upload(key))?, upload).await
    }

    pub async fn delete_upload(&self, key: &UploadKey) -> Result<()> {
        ext::delete_recursive(&*self.registry.tree, &path(layout::upload(key))?).await
    }

    /// Returns the lock for uploading a build to a provider.
    pub fn uploading_lock(&self, build: &BuildKey, provider: &ProviderName) -> Result<Lock> {
        let dir = path(layout::uploads_lock(build, provider))?;
        Ok(self.registry.locks.lock(dir))
    }

    /// Locks an existing upload.
    pub async fn lock_upload(
        &self,
        key: &UploadKey,
        patience: Patience,
    ) -> Result<Attempt<ImageUpload>> {
        let dir = path(layout::upload_lock(key))?;
        let lock = self.registry.locks.lock(dir).of_existing();
        let upload = path(layout::upload(key))?;
        self.registry.lock_and_read(&lock, &upload, patience).await
    }

    async fn flag(&self, flag: String) -> Result<Option<Stat>> {
        self.registry.tree.stat(&path(flag)?).await
    }

    /// Returns the children of a directory whose names parse, which excludes its lock.
    async fn names_in<N, C>(&self, dir: &TreePath) -> Result<C>
    where
        N: std::str::FromStr,
        C: FromIterator<N>,
    {
        let names = ext::child_names(&*self.registry.tree, dir).await?;
        let names = names.iter().filter(|name| *name != layout::LOCK);
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }
}
