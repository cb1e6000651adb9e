//! What a driver has to know from the configuration: the keys of `driver: openstack`.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_driver::{ImageFilter, Owner, Poll};
use nodeyard_model::{ImageName, Label, PoolName};

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

#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub name: PoolName,
    pub availability_zones: Vec<Box<str>>,
    pub security_groups: Vec<Box<str>>,
    pub auto_floating_ip: bool,
    pub labels: Vec<LabelOptions>,
}

#[derive(Debug, Clone)]
pub struct LabelOptions {
    pub name: Label,
    pub image: LabelImage,
    /// In MiB. One of this and `flavor_name` is there.
    pub min_ram: Option<u64>,
    pub flavor_name: Option<Box<str>>,
    pub key_name: Option<Box<str>>,
    pub console_log: bool,
    /// The size in GB of the volume to boot from.
    pub boot_volume: Option<u64>,
    pub instance_properties: BTreeMap<String, String>,
    pub dynamic_instance_properties: BTreeMap<String, String>,
    pub userdata: Option<Box<str>>,
    /// Its own, or those of its pool.
    pub networks: Vec<Box<str>>,
}

impl LabelOptions {
    pub fn new(name: Label, image: LabelImage, flavor_name: &str) -> Self {
        Self {
            name,
            image,
            min_ram: None,
            flavor_name: Some(flavor_name.into()),
            key_name: None,
            console_log: false,
            boot_volume: None,
            instance_properties: BTreeMap::new(),
            dynamic_instance_properties: BTreeMap::new(),
            userdata: None,
            networks: Vec::new(),
        }
    }
}

/// What the machines of a label boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelImage {
    Disk(ImageName),
    /// The name of an entry of `cloud_images`.
    Cloud(Box<str>),
}

#[derive(Debug, Clone)]
pub struct DiskImageOptions {
    pub name: ImageName,
    pub config_drive: Option<bool>,
}

#[derive(Debug, Clone)]
pub struct CloudImageOptions {
    pub name: Box<str>,
    pub choice: ImageChoice,
    pub config_drive: Option<bool>,
}

/// Which image of the cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageChoice {
    /// Taken for granted, not looked up.
    Id(Box<str>),
    Name(Box<str>),
    Filters(Vec<ImageFilter>),
}
