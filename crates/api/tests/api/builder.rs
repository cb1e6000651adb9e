//! What a builder shows and tells.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodeyard_api::builder::{
    BuilderMetrics, BuilderPageSources, ImageUsage, JobServerStatus, JobServerStatusSource,
    WorkerStatus, WorkerStatusSource,
};
use nodeyard_api::{WebappServer, webapp};
use tokio_util::sync::CancellationToken;

use crate::http::get;
use crate::metrics::assert_golden;
use crate::statsd::FakeStatsd;
use crate::testbed::provider;
use crate::webapp::links_of;

#[derive(Debug, Default)]
struct Worker(Mutex<Option<WorkerStatus>>);

impl WorkerStatusSource for Worker {
    fn status(&self) -> Option<WorkerStatus> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Debug)]
struct FakeJobServer;

impl JobServerStatusSource for FakeJobServer {
    fn status(&self) -> JobServerStatus {
        JobServerStatus {
            connections: 12,
            functions: 3,
            waiting: 2,
            running: 1,
            bytes: 300,
            events: vec![("job-submitted", 4), ("job-completed", 1)],
        }
    }
}

#[tokio::test]
async fn builder_metrics_match_the_golden_file() {
    let metrics = BuilderMetrics::new(None, "builder.example");
    let worker = Arc::new(Worker::default());
    let options = webapp::Options {
        address: "127.0.0.1".to_owned(),
        port: 0,
    };
    let sources = BuilderPageSources {
        metrics: metrics.clone(),
        worker: Arc::clone(&worker) as _,
        job_server: Some(Arc::new(FakeJobServer)),
    };
    let pages = WebappServer::bind_builder(options, sources).await.unwrap();
    let address = pages.local_addr().unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(pages.run(stop));

    let index = get(address, "/", &[]).await;
    assert_eq!(links_of(&index), ["/live", "/ready", "/metrics"]);
    assert_eq!(get(address, "/live", &[]).await.status, 200);
    let ready = get(address, "/ready", &[]).await;
    assert_eq!(
        (ready.status, &*ready.body),
        (503, "the worker has not started")
    );
    let mut now = WorkerStatus {
        building: 1,
        functions: BTreeMap::from([("image-build".into(), 2), ("image-info".into(), 1)]),
        images: BTreeMap::from([(
            "debian".parse().unwrap(),
            ImageUsage {
                images: 2,
                bytes: 4096,
            },
        )]),
        ..WorkerStatus::default()
    };
    *worker.0.lock().unwrap() = Some(now.clone());
    assert_eq!(get(address, "/ready", &[]).await.status, 503);
    now.connections = 11;
    *worker.0.lock().unwrap() = Some(now);
    assert_eq!(get(address, "/ready", &[]).await.status, 200);

    let image = "debian".parse().unwrap();
    metrics.record_worker_build(&image, Duration::from_secs(1500), true);
    metrics.record_worker_build(&image, Duration::from_secs(1), false);
    let cloud = provider("cloud");
    metrics.record_worker_upload(&image, &cloud, Duration::from_secs(100_000), true);
    metrics.record_worker_upload(&image, &cloud, Duration::from_secs(1), false);
    let page = get(address, "/metrics", &[]).await;
    assert_golden("builder-metrics.txt", &page.body);
    assert_eq!(get(address, "/image-list", &[]).await.status, 404);
}

#[tokio::test]
async fn negative_exit_codes_are_sent_as_they_are() {
    let ear = FakeStatsd::open().await;
    let metrics = BuilderMetrics::new(Some(ear.statsd().await), "builder.example");
    let image = "debian".parse().unwrap();
    let told = async |exit_code| {
        let no_sizes = std::iter::empty();
        metrics.send_build(&image, Duration::from_secs(1), exit_code, no_sizes);
        let heard = ear.until(|line| line.contains(".last_build:")).await;
        let rc = "nodepool.dib_image_build.debian.status.rc:";
        let values = heard.iter().filter_map(|line| line.strip_prefix(rc));
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told(0).await, ["0|g"]);
    assert_eq!(told(127).await, ["127|g"]);
    // A value with a sign is a change to statsd.
    assert_eq!(told(-9).await, ["0|g", "-9|g"]);
}

#[tokio::test]
async fn zuul_images_have_metrics_of_their_own() {
    let ear = FakeStatsd::open().await;
    let metrics = BuilderMetrics::new(Some(ear.statsd().await), "builder.example");
    let image = "win2022".parse().unwrap();
    metrics.count_poll(&image, true);
    metrics.count_poll(&image, false);
    metrics.count_downloaded(&image, 4096);
    let mut heard = Vec::new();
    while heard.len() < 3 {
        heard.extend(ear.until(|_| true).await);
    }
    heard.sort_unstable();
    let of = "nodepool.zuul_image.win2022";
    assert_eq!(
        heard,
        [
            format!("{of}.download.bytes:4096|c"),
            format!("{of}.poll.error:1|c"),
            format!("{of}.poll.ok:1|c"),
        ]
    );
}
