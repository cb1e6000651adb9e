//! What the driver has to know from the configuration.

use std::time::Duration;

use nodeyard_config::OpenStack;
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_driver_common::openstack::{CloudImageOptions, DiskImageOptions, PoolOptions};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    /// The entry of clouds.yaml.
    pub cloud: Box<str>,
    pub region: Option<Box<str>>,
    pub pools: Vec<PoolOptions>,
    pub cloud_images: Vec<CloudImageOptions>,
    pub disk_images: Vec<DiskImageOptions>,
    pub clean_floating_ips: bool,
    /// Zero switches the removal of ports off.
    pub port_cleanup_interval: Duration,
    /// Images are staged and imported instead of written at once.
    pub image_import: bool,
    /// Time between two calls of one service; zero is without limit.
    pub rate: Duration,
    /// How old a list may be that tells how servers are getting on.
    pub list_age: Duration,
    /// How old a list may be of what changes seldom: flavors, networks.
    pub catalog_age: Duration,
    /// How late a newer image is noticed.
    pub image_age: Duration,
    pub poll: Poll,
}

impl Options {
    pub fn of(section: &OpenStack, owner: Owner) -> Result<Self, Error> {
        let settings = &section.settings;
        let pools = settings.pools.iter().map(PoolOptions::of);
        let cloud_images = settings.cloud_images.iter().map(CloudImageOptions::of);
        let disk_images = settings.diskimages.iter().map(DiskImageOptions::of);
        let rate = *settings.rate;
        Ok(Self {
            owner,
            cloud: section.cloud.as_str().into(),
            region: settings.region_name.as_deref().map(Into::into),
            pools: pools.collect::<Result<_, Error>>()?,
            cloud_images: cloud_images.collect(),
            disk_images: disk_images.collect::<Result<_, Error>>()?,
            clean_floating_ips: settings.clean_floating_ips,
            port_cleanup_interval: *settings.port_cleanup_interval,
            image_import: settings.image_import,
            rate,
            // Lists must leave room for the calls that get something done.
            list_age: (rate * 3).max(Duration::from_millis(500)),
            catalog_age: Duration::from_secs(300),
            image_age: Duration::from_secs(30),
            poll: Poll {
                least: Duration::from_millis(250),
                most: Duration::from_secs(5),
            },
        })
    }
}
