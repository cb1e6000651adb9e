//! The Prometheus metrics of a builder.
//!
//! Series are labelled with the names of images and providers, which the configuration bounds; ids of images are not
//! used as labels.

use super::{JobServerStatus, WorkerCounters, WorkerStatus};
use crate::metrics::exposition::{Exposition, MetricType};

pub(super) fn all(
    counters: &WorkerCounters,
    now: &WorkerStatus,
    job_server: Option<&JobServerStatus>,
) -> String {
    let mut exposition = Exposition::default();
    write_counters(&mut exposition, counters);
    write_gauges(&mut exposition, now);
    if let Some(job_server) = job_server {
        write_job_server_metrics(&mut exposition, job_server);
    }
    exposition.build_info();
    exposition.finish()
}

fn write_counters(exposition: &mut Exposition, counters: &WorkerCounters) {
    let mut builds = exposition.family(
        MetricType::Counter,
        "nodeyard_image_builds_total",
        "Builds of an image that this builder has ended.",
    );
    for ((image, succeeded), count) in &counters.builds {
        let labels = [("image", image.as_str()), ("result", result(*succeeded))];
        builds.sample(&labels, count);
    }
    let mut times = exposition.family(
        MetricType::Histogram,
        "nodeyard_image_build_seconds",
        "How long builds of an image took that made one.",
    );
    for (image, histogram) in &counters.build_times {
        times.histogram(&[("image", image.as_str())], histogram);
    }
    let mut uploads = exposition.family(
        MetricType::Counter,
        "nodeyard_image_uploads_total",
        "Uploads of an image to a provider that this builder has ended.",
    );
    for ((image, provider, succeeded), count) in &counters.uploads {
        let labels = [
            ("image", image.as_str()),
            ("provider", provider.as_str()),
            ("result", result(*succeeded)),
        ];
        uploads.sample(&labels, count);
    }
    let mut times = exposition.family(
        MetricType::Histogram,
        "nodeyard_image_upload_seconds",
        "How long uploads to a provider took that arrived, conversion included.",
    );
    for (provider, histogram) in &counters.upload_times {
        times.histogram(&[("provider", provider.as_str())], histogram);
    }
}

fn write_gauges(exposition: &mut Exposition, now: &WorkerStatus) {
    let mut images = exposition.family(
        MetricType::Gauge,
        "nodeyard_builder_images",
        "Images that this builder holds and can upload.",
    );
    for (image, held) in &now.images {
        images.sample(&[("image", image.as_str())], held.images);
    }
    let mut bytes = exposition.family(
        MetricType::Gauge,
        "nodeyard_builder_image_bytes",
        "What the files of these images take on disk.",
    );
    for (image, held) in &now.images {
        bytes.sample(&[("image", image.as_str())], held.bytes);
    }
    let mut working = exposition.family(
        MetricType::Gauge,
        "nodeyard_builder_working",
        "Builds and uploads that run.",
    );
    working.sample(&[("work", "build")], now.building);
    working.sample(&[("work", "upload")], now.uploading);
    let mut functions = exposition.family(
        MetricType::Gauge,
        "nodeyard_builder_functions",
        "Functions that this builder offers to job servers, by the part of their names before the colon.",
    );
    for (function, count) in &now.functions {
        functions.sample(&[("function", function)], count);
    }
    exposition
        .family(
            MetricType::Gauge,
            "nodeyard_builder_connections",
            "Connections to job servers; each slot has one to each of them.",
        )
        .sample(&[], now.connections);
}

fn write_job_server_metrics(exposition: &mut Exposition, now: &JobServerStatus) {
    let mut gauge = |name, help, value: usize| {
        let mut family = exposition.family(MetricType::Gauge, name, help);
        family.sample(&[], value);
    };
    gauge(
        "nodeyard_gearman_connections",
        "Connections to the job server of this process.",
        now.connections,
    );
    gauge(
        "nodeyard_gearman_functions",
        "Functions that its workers offer or its clients have asked for.",
        now.functions,
    );
    gauge(
        "nodeyard_gearman_job_bytes",
        "What the payloads of its jobs take in memory.",
        now.bytes,
    );
    let mut jobs = exposition.family(
        MetricType::Gauge,
        "nodeyard_gearman_jobs",
        "Jobs that wait for a worker, and jobs that run.",
    );
    jobs.sample(&[("state", "waiting")], now.waiting);
    jobs.sample(&[("state", "running")], now.running);
    let mut events = exposition.family(
        MetricType::Counter,
        "nodeyard_gearman_events_total",
        "What has happened at the job server of this process.",
    );
    for (event, count) in &now.events {
        events.sample(&[("event", event)], count);
    }
}

fn result(succeeded: bool) -> &'static str {
    if succeeded { "ready" } else { "failed" }
}
