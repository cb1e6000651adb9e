//! Which functions are offered, and to which pool of slots their jobs go.
//!
//! Builds have slots of their own, uploads and deletions of files have, deletions from clouds have, and questions have,
//! so that none of them waits for another kind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{Config, ImageSource};
use nodeyard_driver::image_filters::glob;
use nodeyard_gearman::worker::WorkerHandle;
use nodeyard_image::{ImageId, ManifestState};
use nodeyard_model::{ImageName, ProviderName};

use super::Context;
use super::answer::Answer;
use crate::jobs::Function;

/// How long a job waits for a server that does not read.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Functions {
    build: WorkerHandle,
    upload: WorkerHandle,
    removal: WorkerHandle,
    info: WorkerHandle,
}

impl Functions {
    pub(super) fn new([build, upload, removal, info]: [WorkerHandle; 4]) -> Self {
        Self {
            build,
            upload,
            removal,
            info,
        }
    }

    fn all(&self) -> [&WorkerHandle; 4] {
        [&self.build, &self.upload, &self.removal, &self.info]
    }

    fn pool(&self, function: &Function) -> &WorkerHandle {
        match function {
            Function::Build(_) | Function::Import(_) => &self.build,
            Function::Upload(_) | Function::Delete(_) => &self.upload,
            Function::UploadDelete(_) => &self.removal,
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

    fn withdraw(&self, function: &Function) {
        self.pool(function).unregister(&function.to_string());
    }

    /// Waits until the servers know which builds and imports are offered.
    pub(super) async fn builds_sent(&self) {
        let sent = self.build.synced();
        if tokio::time::timeout(SYNC_LIMIT, sent).await.is_err() {
            tracing::warn!("timed out sending functions to a job server");
        }
    }

    /// Waits until the servers know what was offered.
    async fn sent(&self) {
        let sent = async { tokio::join!(self.upload.synced(), self.info.synced()) };
        if tokio::time::timeout(SYNC_LIMIT, sent).await.is_err() {
            tracing::warn!(
                "a job server does not take the functions of an image; going on without it"
            );
        }
    }
}

impl Context {
    fn offer(self: &Arc<Self>, function: Function) {
        let name = function.to_string();
        let pool = self.functions.pool(&function);
        let answer = Answer {
            context: Arc::downgrade(self),
            function,
        };
        if !pool.is_registered(&name)
            && let Err(error) = pool.register(&name, answer)
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a function cannot be offered"
            );
        }
    }

    /// At the start: everything that the configuration names and that the repository holds.
    pub(super) fn offer_everything(self: &Arc<Self>) {
        self.offer_configured();
        for image in self.repository.images() {
            self.offer_image(&image.id);
        }
    }

    /// What the configuration names and is not withheld, and nothing else of its kind.
    pub(super) fn offer_configured(self: &Arc<Self>) {
        // Held to the end, so that nobody who knows less offers what was withdrawn.
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
                self.functions.withdraw(&function);
            }
        }
        for function in wanted {
            self.offer(function);
        }
    }

    /// An image that is being built can be asked about and cancelled, one that has failed can also be deleted, and one of which there
    /// is a file can be uploaded.
    pub(super) fn offer_image(self: &Arc<Self>, id: &ImageId) {
        let Some(image) = self.repository.get(id) else {
            return;
        };
        self.offer(Function::Info(id.clone()));
        if image.state == ManifestState::Building {
            self.offer(Function::Cancel(id.clone()));
        } else {
            self.functions.withdraw(&Function::Cancel(id.clone()));
            self.offer(Function::Delete(id.clone()));
        }
        if image.state == ManifestState::Ready && !image.files.is_empty() {
            self.offer(Function::Upload(id.clone()));
        }
    }

    /// Offers what can be done with an image, and waits until that is known, so that a client may call at once.
    pub(super) async fn announce_image(self: &Arc<Self>, id: &ImageId) {
        self.offer_image(id);
        self.functions.sent().await;
    }

    pub(super) fn withdraw_upload(&self, id: &ImageId) {
        self.functions.withdraw(&Function::Upload(id.clone()));
    }

    /// The job of such a function that is running still gets its answer through.
    pub(super) fn withdraw_image(&self, id: &ImageId) {
        let functions = [
            Function::Upload,
            Function::Delete,
            Function::Info,
            Function::Cancel,
        ];
        for function in functions {
            self.functions.withdraw(&function(id.clone()));
        }
    }
}

pub(super) fn configured(config: &Config) -> BTreeSet<Function> {
    let builds = config.images.values().filter_map(|image| {
        let name = ImageName::new(image.name.as_str()).ok()?;
        works_on(config, &image.name).then_some(match image.source {
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

/// Whether this builder's patterns name an image.
pub(super) fn works_on(config: &Config, image: &str) -> bool {
    config
        .builder_images
        .as_ref()
        .is_none_or(|patterns| patterns.iter().any(|pattern| glob(pattern, image)))
}
