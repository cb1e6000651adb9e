//! The driver's part of the configuration.

use std::time::Duration;

use nodeyard_config::OpenStack;
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_driver_common::openstack::{CloudOptions, TidyOptions};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    pub cloud: CloudOptions,
    pub tidy: TidyOptions,
    /// Whether images are staged and imported instead of written directly.
    pub image_import: bool,
    /// Time between two calls of one service; zero is without limit.
    pub rate: Duration,
    /// How old a list of servers, ports, volumes or floating IPs may be.
    pub list_age: Duration,
    /// How old a list may be of what changes seldom, such as flavors and networks.
    pub catalog_age: Duration,
    /// How old the list of images may be.
    pub image_age: Duration,
    pub poll: Poll,
}

impl Options {
    pub fn of(section: &OpenStack, owner: Owner) -> Result<Self, Error> {
        let settings = &section.settings;
        let rate = *settings.rate;
        Ok(Self {
            owner,
            cloud: CloudOptions::of(&section.cloud, settings)?,
            tidy: TidyOptions::of(settings),
            image_import: settings.image_import,
            rate,
            // Leaves room for other calls than lists.
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
