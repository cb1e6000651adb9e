//! The web pages of a builder: `/live`, `/ready` and `/metrics`, on a port of their own because a launcher on the same
//! host may use the webapp's.

use std::sync::Arc;

use nodeyard_api::builder::{
    BuilderMetrics, BuilderPageSources, ImageUsage, JobServerStatus, JobServerStatusSource,
    WorkerStatus, WorkerStatusSource,
};
use nodeyard_api::{WebappServer, webapp};
use nodeyard_builder::worker::ImageWorkerHandle;
use nodeyard_config::Config;
use nodeyard_gearman::server::ServerHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Reports the status of the worker.
#[derive(Debug)]
struct WorkerMonitor(ImageWorkerHandle);

impl WorkerStatusSource for WorkerMonitor {
    fn status(&self) -> Option<WorkerStatus> {
        let status = self.0.status()?;
        let mut now = WorkerStatus {
            connections: status.connections,
            building: status.building.len(),
            uploading: status.uploading.len(),
            ..WorkerStatus::default()
        };
        for function in &status.functions {
            let kind = function.split(':').next().unwrap_or_default();
            *now.functions.entry(kind.into()).or_default() += 1;
        }
        for (image, held) in status.held {
            let (images, bytes) = (held.images, held.bytes);
            now.images.insert(image, ImageUsage { images, bytes });
        }
        Some(now)
    }
}

/// Reports the status of the job server.
#[derive(Debug)]
struct JobServerMonitor(ServerHandle);

impl JobServerStatusSource for JobServerMonitor {
    fn status(&self) -> JobServerStatus {
        let now = self.0.metrics();
        JobServerStatus {
            connections: now.open_connections,
            functions: now.functions,
            waiting: now.waiting_jobs,
            running: now.running_jobs,
            bytes: now.job_bytes,
            events: now.counters.named().into(),
        }
    }
}

/// Opens the port. A default port may be in use; that is not an error.
pub(super) async fn bind(
    config: &Config,
    metrics: BuilderMetrics,
    worker: ImageWorkerHandle,
    job_server: Option<ServerHandle>,
) -> anyhow::Result<Option<WebappServer>> {
    let wanted = config.builder_webapp.as_ref();
    let settings = wanted.cloned().unwrap_or_default();
    let options = webapp::Options {
        address: settings.listen_address,
        port: settings.port.0,
    };
    let sources = BuilderPageSources {
        metrics,
        worker: Arc::new(WorkerMonitor(worker)),
        job_server: job_server.map(|server| Arc::new(JobServerMonitor(server)) as _),
    };
    match WebappServer::bind_builder(options, sources).await {
        Ok(webapp) => Ok(Some(webapp)),
        Err(error) if wanted.is_some() => Err(error.into()),
        Err(error) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "failed to start the builder pages"
            );
            Ok(None)
        }
    }
}

pub(super) async fn serve(pages: Option<WebappServer>, stop: CancellationToken) {
    if let Some(pages) = pages {
        if let Ok(address) = pages.local_addr() {
            info!(%address, "serving builder pages");
        }
        pages.run(stop).await;
    }
}
