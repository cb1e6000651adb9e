//! A builder's metrics for Prometheus: all names, with what they mean.
//!
//! Labels of series are names of images and providers: those of the configuration, and of the files that are left of
//! an earlier one. Ids of images are not among them.

use super::{JobServerNow, Recorded, WorkerNow};
use crate::metrics::exposition::{Exposition, Kind};

pub(super) fn all(
    recorded: &Recorded,
    now: &WorkerNow,
    job_server: Option<&JobServerNow>,
) -> String {
    let mut exposition = Exposition::default();
    happened(&mut exposition, recorded);
    existing(&mut exposition, now);
    if let Some(job_server) = job_server {
        serving(&mut exposition, job_server);
    }
    exposition.build_info();
    exposition.finish()
}

fn happened(exposition: &mut Exposition, recorded: &Recorded) {
    let mut builds = exposition.family(
        Kind::Counter,
        "nodeyard_image_builds_total",
        "Builds of an image that this builder has ended.",
    );
    for ((image, succeeded), count) in &recorded.builds {
        let labels = [("image", image.as_str()), ("result", result(*succeeded))];
        builds.sample(&labels, count);
    }
    let mut times = exposition.family(
        Kind::Histogram,
        "nodeyard_image_build_seconds",
        "How long builds of an image took that made one.",
    );
    for (image, histogram) in &recorded.build_times {
        times.histogram(&[("image", image.as_str())], histogram);
    }
    let mut uploads = exposition.family(
        Kind::Counter,
        "nodeyard_image_uploads_total",
        "Uploads of an image to a provider that this builder has ended.",
    );
    for ((image, provider, succeeded), count) in &recorded.uploads {
        let labels = [
            ("image", image.as_str()),
            ("provider", provider.as_str()),
            ("result", result(*succeeded)),
        ];
        uploads.sample(&labels, count);
    }
    let mut times = exposition.family(
        Kind::Histogram,
        "nodeyard_image_upload_seconds",
        "How long uploads to a provider took that arrived, conversion included.",
    );
    for (provider, histogram) in &recorded.upload_times {
        times.histogram(&[("provider", provider.as_str())], histogram);
    }
}

fn existing(exposition: &mut Exposition, now: &WorkerNow) {
    let mut images = exposition.family(
        Kind::Gauge,
        "nodeyard_builder_images",
        "Images that this builder holds and can upload.",
    );
    for (image, held) in &now.images {
        images.sample(&[("image", image.as_str())], held.images);
    }
    let mut bytes = exposition.family(
        Kind::Gauge,
        "nodeyard_builder_image_bytes",
        "What the files of these images take on disk.",
    );
    for (image, held) in &now.images {
        bytes.sample(&[("image", image.as_str())], held.bytes);
    }
    let mut working = exposition.family(
        Kind::Gauge,
        "nodeyard_builder_working",
        "Builds and uploads that run.",
    );
    working.sample(&[("work", "build")], now.building);
    working.sample(&[("work", "upload")], now.uploading);
    let mut functions = exposition.family(
        Kind::Gauge,
        "nodeyard_builder_functions",
        "Functions that this builder offers to job servers, by the part of their names before the colon.",
    );
    for (kind, count) in &now.functions {
        functions.sample(&[("function", kind)], count);
    }
    exposition
        .family(
            Kind::Gauge,
            "nodeyard_builder_connections",
            "Connections to job servers; each slot has one to each of them.",
        )
        .sample(&[], now.connections);
}

fn serving(exposition: &mut Exposition, now: &JobServerNow) {
    let mut gauge = |name, help, value: usize| {
        let mut family = exposition.family(Kind::Gauge, name, help);
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
        Kind::Gauge,
        "nodeyard_gearman_jobs",
        "Jobs that wait for a worker, and jobs that run.",
    );
    jobs.sample(&[("state", "waiting")], now.waiting);
    jobs.sample(&[("state", "running")], now.running);
    let mut events = exposition.family(
        Kind::Counter,
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
