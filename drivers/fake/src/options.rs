//! What a driver has to know from the configuration: the keys of `driver: openstack`.

use std::time::Duration;

use nodeyard_config::Fake;
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_driver_common::openstack::{CloudImageOptions, DiskImageOptions, PoolOptions};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    /// Goes to the `cloud` of nodes.
    pub cloud: Box<str>,
    pub region: Option<Box<str>>,
    pub pools: Vec<PoolOptions>,
    pub cloud_images: Vec<CloudImageOptions>,
    pub disk_images: Vec<DiskImageOptions>,
    pub clean_floating_ips: bool,
    /// Zero switches the removal of ports off.
    pub port_cleanup_interval: Duration,
    /// How long the answer that there is no such image is believed.
    pub image_check_interval: Duration,
    /// Time between two calls; zero is without limit.
    pub rate: Duration,
    /// How long one call may take.
    pub call_timeout: Duration,
    pub poll: Poll,
}

impl Options {
    pub fn of(section: &Fake, owner: Owner) -> Result<Self, Error> {
        let settings = &section.settings;
        let pools = settings.pools.iter().map(PoolOptions::of);
        let cloud_images = settings.cloud_images.iter().map(CloudImageOptions::of);
        let disk_images = settings.diskimages.iter().map(DiskImageOptions::of);
        Ok(Self {
            cloud: section.cloud.as_str().into(),
            region: settings.region_name.as_deref().map(Into::into),
            pools: pools.collect::<Result<_, Error>>()?,
            cloud_images: cloud_images.collect(),
            disk_images: disk_images.collect::<Result<_, Error>>()?,
            clean_floating_ips: settings.clean_floating_ips,
            port_cleanup_interval: *settings.port_cleanup_interval,
            // A simulated cloud has no limit of calls; the configured rate is that of the real one.
            ..Self::new(owner)
        })
    }

    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            cloud: "fake".into(),
            region: None,
            pools: Vec::new(),
            cloud_images: Vec::new(),
            disk_images: Vec::new(),
            clean_floating_ips: false,
            port_cleanup_interval: Duration::from_secs(600),
            image_check_interval: Duration::from_millis(100),
            rate: Duration::ZERO,
            call_timeout: Duration::from_secs(60),
            poll: Poll::default(),
        }
    }
}
