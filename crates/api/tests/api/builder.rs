//! What a builder shows and tells.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodeyard_api::builder::{
    BuilderMetrics, ImagesHeld, JobServerNow, LookAtJobServer, LookAtWorker, Sources, WorkerNow,
};
use nodeyard_api::{Webapp, webapp};
use tokio_util::sync::CancellationToken;

use crate::bed::provider;
use crate::http::get;
use crate::metrics::assert_golden;
use crate::statsd::Ear;
use crate::webapp::links_of;

#[derive(Debug, Default)]
struct Worker(Mutex<Option<WorkerNow>>);

impl LookAtWorker for Worker {
    fn look(&self) -> Option<WorkerNow> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Debug)]
struct FakeJobServer;

impl LookAtJobServer for FakeJobServer {
    fn look(&self) -> JobServerNow {
        JobServerNow {
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
async fn a_builders_metrics_are_the_golden_ones() {
    let metrics = BuilderMetrics::new(None, "builder.example");
    let worker = Arc::new(Worker::default());
    let options = webapp::Options {
        address: "127.0.0.1".to_owned(),
        port: 0,
    };
    let sources = Sources {
        metrics: metrics.clone(),
        worker: Arc::clone(&worker) as _,
        job_server: Some(Arc::new(FakeJobServer)),
    };
    let pages = Webapp::bind_builder(options, sources).await.unwrap();
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
        (503, "the worker has not begun")
    );
    let mut now = WorkerNow {
        building: 1,
        functions: BTreeMap::from([("image-build".into(), 2), ("image-info".into(), 1)]),
        images: BTreeMap::from([(
            "debian".parse().unwrap(),
            ImagesHeld {
                images: 2,
                bytes: 4096,
            },
        )]),
        ..WorkerNow::default()
    };
    *worker.0.lock().unwrap() = Some(now.clone());
    assert_eq!(get(address, "/ready", &[]).await.status, 503);
    now.connections = 11;
    *worker.0.lock().unwrap() = Some(now);
    assert_eq!(get(address, "/ready", &[]).await.status, 200);

    let image = "debian".parse().unwrap();
    metrics.worker_built(&image, Duration::from_secs(1500), true);
    metrics.worker_built(&image, Duration::from_secs(1), false);
    let cloud = provider("cloud");
    metrics.worker_uploaded(&image, &cloud, Duration::from_secs(100_000), true);
    metrics.worker_uploaded(&image, &cloud, Duration::from_secs(1), false);
    let page = get(address, "/metrics", &[]).await;
    assert_golden("builder-metrics.txt", &page.body);
    assert_eq!(get(address, "/image-list", &[]).await.status, 404);
}

#[tokio::test]
async fn an_exit_code_is_told_as_it_is() {
    let ear = Ear::open().await;
    let metrics = BuilderMetrics::new(Some(ear.statsd().await), "builder.example");
    let image = "debian".parse().unwrap();
    let told = async |exit_code| {
        let no_sizes = std::iter::empty();
        metrics.built(&image, Duration::from_secs(1), exit_code, no_sizes);
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
async fn images_of_zuul_are_counted_by_their_own_names() {
    let ear = Ear::open().await;
    let metrics = BuilderMetrics::new(Some(ear.statsd().await), "builder.example");
    let image = "win2022".parse().unwrap();
    metrics.polled(&image, true);
    metrics.polled(&image, false);
    metrics.fetched(&image, 4096);
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
