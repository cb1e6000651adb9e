//! Registers functions and assigns them to pools of slots.
//!
//! Builds, uploads with file deletions, deletions from clouds, and queries have separate slots, so that they do not wait for
//! each other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{Config, ImageSource};
use nodeyard_driver::image_filters::glob;
use nodeyard_gearman::worker::WorkerHandle;
use nodeyard_image::{ImageId, ManifestState};
use nodeyard_model::{ImageName, ProviderName};

use super::WorkerContext;
use super::handler::FunctionHandler;
use crate::jobs::Function;

/// The time limit for sending registrations to job servers.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct OfferedFunctions {
    build: WorkerHandle,
    upload: WorkerHandle,
    deletion: WorkerHandle,
    info: WorkerHandle,
}

impl OfferedFunctions {
    pub(super) fn new([build, upload, deletion, info]: [WorkerHandle; 4]) -> Self {
        Self {
            build,
            upload,
            deletion,
            info,
        }
    }

    fn all(&self) -> [&WorkerHandle; 4] {
        [&self.build, &self.upload, &self.deletion, &self.info]
    }

    fn pool(&self, function: &Function) -> &WorkerHandle {
        match function {
            Function::Build(_) | Function::Import(_) => &self.build,
            Function::Upload(_) | Function::Delete(_) => &self.upload,
            Function::UploadDelete(_) => &self.deletion,
            Function::Info(_) | Function::Cancel(_) => &self.info,
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.all().iter().map(|pool| pool.connected()).sum()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all()
            .iter()
            .flat_map(|pool| pool.functions())
            .collect()
    }

    fn unregister(&self, function: &Function) {
        self.pool(function).unregister(&function.to_string());
    }

    /// Waits until the registrations of builds and imports have been sent.
    pub(super) async fn builds_sent(&self) {
        let sent = self.build.synced();
        if tokio::time::timeout(SYNC_LIMIT, sent).await.is_err() {
            tracing::warn!("timed out registering build functions with a job server; continuing");
        }
    }

    /// Waits until the registrations of image functions have been sent.
    async fn sent(&self) {
        let sent = async { tokio::join!(self.upload.synced(), self.info.synced()) };
        if tokio::time::timeout(SYNC_LIMIT, sent).await.is_err() {
            tracing::warn!("timed out registering image functions with a job server; continuing");
        }
    }
}

impl WorkerContext {
    fn register(self: &Arc<Self>, function: Function) {
        let name = function.to_string();
        let pool = self.functions.pool(&function);
        let answer = FunctionHandler {
            context: Arc::downgrade(self),
            function,
        };
        if !pool.is_registered(&name)
            && let Err(error) = pool.register(&name, answer)
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "failed to register function"
            );
        }
    }

    /// Registers the functions of the configuration and of all images in the repository.
    pub(super) fn register_all(self: &Arc<Self>) {
        self.register_configured();
        for image in self.repository.images() {
            self.register_image(&image.id);
        }
    }

    /// Registers the functions of the configuration, except withheld ones, and unregisters outdated ones.
    pub(super) fn register_configured(self: &Arc<Self>) {
        // Locked to the end, so that a concurrent call cannot register a withheld function.
        let withheld = self.withheld.lock();
        let mut wanted = configured(&self.config());
        wanted.retain(|function| !withheld.contains(function));
        let offered = self.functions.names();
        let outdated = offered.iter().filter_map(|name| Function::parse(name));
        for function in outdated.filter(|function| !wanted.contains(function)) {
            if matches!(
                function,
                Function::Build(_) | Function::Import(_) | Function::UploadDelete(_)
            ) {
                self.functions.unregister(&function);
            }
        }
        for function in wanted {
            self.register(function);
        }
    }

    /// Registers the functions of an image: info always, cancel while it is being built, delete after that, and upload if it has
    /// files.
    pub(super) fn register_image(self: &Arc<Self>, id: &ImageId) {
        let Some(image) = self.repository.get(id) else {
            return;
        };
        self.register(Function::Info(id.clone()));
        if image.state == ManifestState::Building {
            self.register(Function::Cancel(id.clone()));
        } else {
            self.functions.unregister(&Function::Cancel(id.clone()));
            self.register(Function::Delete(id.clone()));
        }
        if image.state == ManifestState::Ready && !image.files.is_empty() {
            self.register(Function::Upload(id.clone()));
        }
    }

    /// Registers the functions of an image and waits until that has been sent, so that a client can call them at once.
    pub(super) async fn register_image_and_sync(self: &Arc<Self>, id: &ImageId) {
        self.register_image(id);
        self.functions.sent().await;
    }

    pub(super) fn unregister_upload(&self, id: &ImageId) {
        self.functions.unregister(&Function::Upload(id.clone()));
    }

    /// Unregisters the functions of an image. Running jobs still return their results.
    pub(super) fn unregister_image(&self, id: &ImageId) {
        let functions = [
            Function::Upload,
            Function::Delete,
            Function::Info,
            Function::Cancel,
        ];
        for function in functions {
            self.functions.unregister(&function(id.clone()));
        }
    }
}

pub(super) fn configured(config: &Config) -> BTreeSet<Function> {
    let builds = config.images.values().filter_map(|image| {
        let name = ImageName::new(image.name.as_str()).ok()?;
        handles_image(config, &image.name).then_some(match image.source {
            ImageSource::Build(_) => Function::Build(name),
            ImageSource::Zuul(_) => Function::Import(name),
        })
    });
    let providers = config.providers.values().filter_map(|provider| {
        let name = ProviderName::new(provider.name()).ok()?;
        provider
            .manages_images()
            .then_some(Function::UploadDelete(name))
    });
    builds.chain(providers).collect()
}

/// Returns whether an image matches the `builder-images` patterns of this worker.
pub(super) fn handles_image(config: &Config, image: &str) -> bool {
    config
        .builder_images
        .as_ref()
        .is_none_or(|patterns| patterns.iter().any(|pattern| glob(pattern, image)))
}
