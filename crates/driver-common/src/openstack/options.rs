//! Clouds, pools, labels and images of the configuration.

use std::collections::BTreeMap;

use nodeyard_config::{
    OpenStackCloudImage, OpenStackDiskImage, OpenStackLabel, OpenStackPool, OpenStackSettings,
};
use nodeyard_driver::{CreateOrder, Error, ImageFilter, template};
use nodeyard_model::{ImageName, Label, PoolName, ProviderName};

use crate::images::{LabelImage, image_filters, image_name};

#[derive(Debug, Clone)]
pub struct CloudOptions {
    /// The entry of clouds.yaml; stored as `cloud` of nodes.
    pub name: Box<str>,
    pub region: Option<Box<str>>,
    pub pools: Vec<PoolOptions>,
    pub cloud_images: Vec<CloudImageOptions>,
    pub disk_images: Vec<DiskImageOptions>,
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
    /// In MiB. Either this or `flavor_name` is set.
    pub min_ram: Option<u64>,
    pub flavor_name: Option<Box<str>>,
    pub key_name: Option<Box<str>>,
    pub console_log: bool,
    /// The size in GB of the volume to boot from.
    pub boot_volume: Option<u64>,
    pub instance_properties: BTreeMap<String, String>,
    pub dynamic_instance_properties: BTreeMap<String, String>,
    pub userdata: Option<Box<str>>,
    /// Those of the label, or else of its pool.
    pub networks: Vec<Box<str>>,
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

/// How an image of the cloud is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageChoice {
    /// Used without a lookup.
    Id(Box<str>),
    /// The name, or the id, as in Nodepool.
    Name(Box<str>),
    Filters(Vec<ImageFilter>),
}

impl CloudOptions {
    pub fn of(name: &str, settings: &OpenStackSettings) -> Result<Self, Error> {
        let pools = settings.pools.iter().map(PoolOptions::of);
        let cloud_images = settings.cloud_images.iter().map(CloudImageOptions::of);
        let disk_images = settings.diskimages.iter().map(DiskImageOptions::of);
        Ok(Self {
            name: name.into(),
            region: settings.region_name.as_deref().map(Into::into),
            pools: pools.collect::<Result<_, Error>>()?,
            cloud_images: cloud_images.collect(),
            disk_images: disk_images.collect::<Result<_, Error>>()?,
        })
    }
}

impl PoolOptions {
    pub fn of(pool: &OpenStackPool) -> Result<Self, Error> {
        let labels = pool.labels.iter().map(LabelOptions::of);
        Ok(Self {
            name: pool.common.name.as_str().into(),
            availability_zones: texts(&pool.availability_zones),
            security_groups: texts(&pool.security_groups),
            auto_floating_ip: pool.auto_floating_ip,
            labels: labels.collect::<Result<_, Error>>()?,
        })
    }

    pub fn label(&self, name: &Label) -> Result<&LabelOptions, Error> {
        let mut labels = self.labels.iter();
        labels
            .find(|label| label.name == *name)
            .ok_or_else(|| Error::permanent(format!("pool {} has no label {name}", self.name)))
    }
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

    fn of(label: &OpenStackLabel) -> Result<Self, Error> {
        let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
        let properties = label.instance_properties.iter().map(|(key, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            (key.clone(), text)
        });
        let dynamic = label.dynamic_instance_properties.iter();
        Ok(Self {
            name: label.name.as_str().into(),
            image: LabelImage::of(&label.name, disk, cloud)?,
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

    /// Returns the metadata of a server that boots from `image`. The tags that lead back to the record override
    /// `instance-properties` of the configuration.
    pub fn metadata(
        &self,
        provider: &ProviderName,
        order: &CreateOrder,
        image: &str,
    ) -> BTreeMap<String, String> {
        let groups = format!("{provider},{image},{}", self.name);
        let mut metadata = BTreeMap::from([("groups".to_owned(), groups)]);
        metadata.extend(self.instance_properties.clone());
        for (key, text) in &self.dynamic_instance_properties {
            match template::render(text, &order.request) {
                Ok(value) => {
                    metadata.insert(key.clone(), value);
                }
                Err(error) => {
                    tracing::warn!(label = %self.name, key, %error, "failed to render instance property; leaving it out");
                }
            }
        }
        let tags = order.tags.to_metadata().into_iter();
        metadata.extend(tags.map(|(key, value)| (key.to_owned(), value)));
        metadata
    }
}

impl DiskImageOptions {
    pub fn of(image: &OpenStackDiskImage) -> Result<Self, Error> {
        Ok(Self {
            name: image_name(&image.name)?,
            config_drive: image.config_drive,
        })
    }
}

impl CloudImageOptions {
    pub fn of(image: &OpenStackCloudImage) -> Self {
        let choice = match (&image.image_id, &image.image_filters) {
            (Some(id), _) => ImageChoice::Id(id.as_str().into()),
            (None, Some(filters)) => ImageChoice::Filters(image_filters(filters)),
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

fn texts(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}
