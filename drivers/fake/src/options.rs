//! The options of the driver, from the keys of `driver: openstack`.

use std::time::Duration;

use nodeyard_config::Fake;
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_driver_common::openstack::{CloudOptions, TidyOptions};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    pub cloud: CloudOptions,
    pub tidy: TidyOptions,
    /// How long it is cached that an image does not exist.
    pub image_check_interval: Duration,
    /// Time between two calls; zero is without limit.
    pub rate: Duration,
    /// How long one call may take.
    pub call_timeout: Duration,
    pub poll: Poll,
}

impl Options {
    pub fn of(section: &Fake, owner: Owner) -> Result<Self, Error> {
        Ok(Self {
            cloud: CloudOptions::of(&section.cloud, &section.settings)?,
            tidy: TidyOptions::of(&section.settings),
            // The configured rate is that of a real cloud; a simulated one has no limit.
            ..Self::new(owner)
        })
    }

    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            cloud: CloudOptions {
                name: "fake".into(),
                region: None,
                pools: Vec::new(),
                cloud_images: Vec::new(),
                disk_images: Vec::new(),
            },
            tidy: TidyOptions {
                floating_ips: false,
                port_interval: Duration::from_secs(600),
            },
            image_check_interval: Duration::from_millis(100),
            rate: Duration::ZERO,
            call_timeout: Duration::from_secs(60),
            poll: Poll::default(),
        }
    }
}
