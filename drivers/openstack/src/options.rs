//! What the driver has to know from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_config::{self as config, OpenStack, OpenStackLabel, OpenStackPool};
use nodeyard_driver::{Error, ImageFilter, Owner, Poll};
use nodeyard_model::{ImageName, Label, PoolName};

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
    /// Or its id, as Nodepool has it.
    Name(Box<str>),
    Filters(Vec<ImageFilter>),
}

impl Options {
    pub fn of(section: &OpenStack, owner: Owner) -> Result<Self, Error> {
        let settings = &section.settings;
        let pools = settings.pools.iter().map(PoolOptions::of);
        let disk_images = settings.diskimages.iter().map(|image| {
            Ok(DiskImageOptions {
                name: image_name(&image.name)?,
                config_drive: image.config_drive,
            })
        });
        let rate = *settings.rate;
        Ok(Self {
            owner,
            cloud: section.cloud.as_str().into(),
            region: settings.region_name.as_deref().map(Into::into),
            pools: pools.collect::<Result<_, Error>>()?,
            cloud_images: settings
                .cloud_images
                .iter()
                .map(CloudImageOptions::of)
                .collect(),
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

impl PoolOptions {
    fn of(pool: &OpenStackPool) -> Result<Self, Error> {
        Ok(Self {
            name: pool.common.name.as_str().into(),
            availability_zones: texts(&pool.availability_zones),
            security_groups: texts(&pool.security_groups),
            auto_floating_ip: pool.auto_floating_ip,
            labels: pool
                .labels
                .iter()
                .map(LabelOptions::of)
                .collect::<Result<_, Error>>()?,
        })
    }
}

impl LabelOptions {
    fn of(label: &OpenStackLabel) -> Result<Self, Error> {
        let image = match (&label.diskimage, &label.cloud_image) {
            (Some(image), _) => LabelImage::Disk(image_name(image)?),
            (None, Some(image)) => LabelImage::Cloud(image.as_str().into()),
            (None, None) => {
                let text = format!("label {} has no image", label.name);
                return Err(Error::permanent(text));
            }
        };
        let properties = label.instance_properties.iter().map(|(key, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            (key.clone(), text)
        });
        let dynamic = label.dynamic_instance_properties.iter();
        Ok(Self {
            name: label.name.as_str().into(),
            image,
            min_ram: label.min_ram,
            flavor_name: label.flavor_name.as_deref().map(Into::into),
            key_name: label.key_name.as_deref().map(Into::into),
            console_log: label.console_log,
            boot_volume: label.boot_from_volume.then_some(label.volume_size),
            instance_properties: properties.collect(),
            dynamic_instance_properties: dynamic
                .map(|(key, text)| (key.clone(), text.clone()))
                .collect(),
            userdata: label.userdata.as_deref().map(Into::into),
            networks: texts(&label.networks),
        })
    }
}

impl CloudImageOptions {
    fn of(image: &config::OpenStackCloudImage) -> Self {
        let choice = match (&image.image_id, &image.image_filters) {
            (Some(id), _) => ImageChoice::Id(id.as_str().into()),
            (None, Some(filters)) => ImageChoice::Filters(
                filters
                    .iter()
                    .map(|filter| ImageFilter {
                        name: filter.name.clone(),
                        values: filter.values.clone(),
                    })
                    .collect(),
            ),
            (None, None) => {
                let name = image.image_name.as_deref().unwrap_or(image.name.as_str());
                ImageChoice::Name(name.into())
            }
        };
        Self {
            name: image.name.as_str().into(),
            choice,
            config_drive: image.config_drive,
        }
    }
}

fn image_name(name: &str) -> Result<ImageName, Error> {
    ImageName::new(name).map_err(|cause| Error::permanent("an image cannot be used").because(cause))
}

fn texts(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}
