//! What others see of a builder: `/live`, `/ready` and `/metrics`, on a port of its own since a launcher on the same
//! host has that of the webapp.

use std::sync::Arc;

use nodeyard_api::builder::{
    BuilderMetrics, ImagesHeld, JobServerNow, LookAtJobServer, LookAtWorker, Sources, WorkerNow,
};
use nodeyard_api::{Webapp, webapp};
use nodeyard_builder::worker::Handle;
use nodeyard_config::Config;
use nodeyard_gearman::server::ServerHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

#[derive(Debug)]
struct Seen(Handle);

impl LookAtWorker for Seen {
    fn look(&self) -> Option<WorkerNow> {
        let status = self.0.status()?;
        let mut now = WorkerNow {
            connections: status.connections,
            building: status.building.len(),
            uploading: status.uploading.len(),
            ..WorkerNow::default()
        };
        for function in &status.functions {
            let kind = function.split(':').next().unwrap_or_default();
            *now.functions.entry(kind.into()).or_default() += 1;
        }
        for (image, held) in status.held {
            let (images, bytes) = (held.images, held.bytes);
            now.images.insert(image, ImagesHeld { images, bytes });
        }
        Some(now)
    }
}

#[derive(Debug)]
struct SeenServer(ServerHandle);

impl LookAtJobServer for SeenServer {
    fn look(&self) -> JobServerNow {
        let now = self.0.metrics();
        JobServerNow {
            connections: now.open_connections,
            functions: now.functions,
            waiting: now.waiting_jobs,
            running: now.running_jobs,
            bytes: now.job_bytes,
            events: now.counters.named().into(),
        }
    }
}

/// Takes the port. One that nobody asked for may be somebody else's.
pub(super) async fn bind(
    config: &Config,
    metrics: BuilderMetrics,
    worker: Handle,
    job_server: Option<ServerHandle>,
) -> anyhow::Result<Option<Webapp>> {
    let wanted = config.builder_webapp.as_ref();
    let settings = wanted.cloned().unwrap_or_default();
    let options = webapp::Options {
        address: settings.listen_address,
        port: settings.port.0,
    };
    let sources = Sources {
        metrics,
        worker: Arc::new(Seen(worker)),
        job_server: job_server.map(|server| Arc::new(SeenServer(server)) as _),
    };
    match Webapp::bind_builder(options, sources).await {
        Ok(webapp) => Ok(Some(webapp)),
        Err(error) if wanted.is_some() => Err(error.into()),
        Err(error) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "no pages of the builder"
            );
            Ok(None)
        }
    }
}

pub(super) async fn show(pages: Option<Webapp>, stop: CancellationToken) {
    if let Some(pages) = pages {
        if let Ok(address) = pages.local_addr() {
            info!(%address, "pages of the builder");
        }
        pages.run(stop).await;
    }
}
