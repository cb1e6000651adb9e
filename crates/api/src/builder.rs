//! What a builder tells statsd, by Nodepool's names.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nodeyard_model::{ImageName, ProviderName};

use crate::statsd::Statsd;
use crate::statsd::names::raw as name;

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub struct BuilderMetrics {
    statsd: Option<Statsd>,
    /// The full host name, as a part of names.
    host: String,
}

impl BuilderMetrics {
    pub fn new(statsd: Option<Statsd>, host: &str) -> Self {
        let host = name(host).into_owned();
        Self { statsd, host }
    }

    /// A build has ended; `sizes` are those of its files on disk, by format.
    pub fn built<'a>(
        &self,
        image: &ImageName,
        took: Duration,
        succeeded: bool,
        sizes: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let Some(statsd) = &self.statsd else { return };
        let image = format!("nodepool.dib_image_build.{}", name(image.as_str()));
        let ended = SystemTime::now().duration_since(UNIX_EPOCH);
        statsd.send(|batch| {
            for (format, size) in sizes {
                batch.gauge(&format!("{image}.{}.size", name(format)), size);
            }
            batch.timing(&format!("{image}.status.duration"), took);
            batch.gauge(&format!("{image}.status.rc"), u8::from(!succeeded));
            if let Ok(ended) = ended {
                batch.gauge(&format!("{image}.status.last_build"), ended.as_secs());
            }
        });
    }

    pub fn uploaded(&self, image: &ImageName, provider: &ProviderName, took: Duration) {
        let Some(statsd) = &self.statsd else { return };
        let (image, provider) = (name(image.as_str()), name(provider.as_str()));
        let key = format!("nodepool.image_update.{image}.{provider}");
        statsd.send(|batch| {
            batch.timing(&key, took);
            batch.count(&key, 1);
        });
    }

    /// `state` in the numbers of Nodepool: 0 idle, 1 building, 3 paused.
    pub fn building(&self, image: &ImageName, state: u8) {
        let (host, image) = (&self.host, name(image.as_str()));
        self.gauge(
            &format!("nodepool.builder.{host}.image.{image}.build.state"),
            state,
        );
    }

    /// `state` in the numbers of Nodepool: 0 idle, 2 uploading, 3 paused.
    pub fn uploading(&self, image: &ImageName, provider: &ProviderName, state: u8) {
        let (host, image, provider) = (&self.host, name(image.as_str()), name(provider.as_str()));
        let key = format!("nodepool.builder.{host}.image.{image}.provider.{provider}.upload.state");
        self.gauge(&key, state);
    }

    /// Whether somebody waits for a build of the image.
    pub fn requested(&self, image: &ImageName, waits: bool) {
        let image = name(image.as_str());
        let key = format!("nodepool.image.{image}.image_build_requests");
        self.gauge(&key, u8::from(waits));
    }

    /// How many images somebody waits for.
    pub fn all_requested(&self, images: usize) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge("nodepool.image_build_requests", images));
        }
    }

    fn gauge(&self, key: &str, value: u8) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge(key, value));
        }
    }
}
