//! What the cloud offers, and which of it a label means.

use std::sync::Arc;

use nodeyard_driver::{
    BootImage, CloudImage, CreateOrder, Error, ExternalId, ImageStatus, Readiness, image_filters,
};
use nodeyard_driver_common::LabelImage;
use nodeyard_driver_common::openstack::{
    CloudImageOptions, ImageChoice, LabelOptions, PoolOptions,
};
use nodeyard_openstack::{ErrorKind, Flavor, Net, SecurityGroup, Zone};

use crate::driver::{OpenStackDriver, text_id};
use crate::failure::{failed, missing};
use crate::images;
use crate::networks::Networks;
use crate::shared::Shared;

/// What changes seldom.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    flavors: Shared<Vec<Flavor>>,
    zones: Shared<Vec<Box<str>>>,
    networks: Shared<Networks>,
    groups: Shared<Vec<SecurityGroup>>,
    keys: Shared<Vec<Box<str>>>,
    images: Shared<Vec<CloudImage>>,
}

impl Catalog {
    pub(crate) async fn forget(&self) {
        self.flavors.forget().await;
        self.zones.forget().await;
        self.networks.forget().await;
        self.groups.forget().await;
        self.keys.forget().await;
        self.images.forget().await;
    }

    /// One has come or gone.
    pub(crate) async fn forget_images(&self) {
        self.images.forget().await;
    }
}

/// What a server boots from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    /// As the configuration calls it.
    pub(crate) name: String,
    pub(crate) id: Box<str>,
    pub(crate) config_drive: Option<bool>,
}

impl OpenStackDriver {
    /// The smallest first.
    pub(crate) async fn flavors(&self) -> Result<Arc<Vec<Flavor>>, Error> {
        let ask = async {
            let mut flavors = self.compute.flavors().await.map_err(failed)?;
            flavors.sort_by(|a, b| (a.ram, &a.name).cmp(&(b.ram, &b.name)));
            Ok(flavors)
        };
        self.catalog
            .flavors
            .within(self.options.catalog_age, ask)
            .await
    }

    /// With `min-ram`: the smallest that has it and whose name contains `flavor-name`. Otherwise the one that is
    /// called exactly so.
    pub(crate) async fn flavor_of(&self, label: &LabelOptions) -> Result<Flavor, Error> {
        let flavors = self.flavors().await?;
        let place = format!("label {}", label.name);
        let name = label.flavor_name.as_deref();
        let there = || flavors.iter().map(|flavor| &*flavor.name);
        match label.min_ram {
            Some(ram) => {
                let fits = |flavor: &&Flavor| {
                    i64::try_from(ram).is_ok_and(|ram| flavor.ram >= ram)
                        && name.is_none_or(|name| flavor.name.contains(name))
                };
                flavors.iter().find(fits).cloned().ok_or_else(|| {
                    let part = name.map(|name| format!(" and {name:?} in its name")).unwrap_or_default();
                    let largest = flavors.last().map_or(0, |flavor| flavor.ram);
                    Error::permanent(format!(
                        "{place}: the cloud has no flavor with {ram} MiB{part}; the largest has {largest} MiB, and there are {}",
                        there().collect::<Vec<_>>().join(", ")
                    ))
                })
            }
            None => {
                let name = name.unwrap_or_default();
                let is = |flavor: &&Flavor| *flavor.name == *name || *flavor.id == *name;
                let found = flavors.iter().find(is).cloned();
                found.ok_or_else(|| missing(&place, "flavor", name, there()))
            }
        }
    }

    /// Those that take servers; none where the cloud does not tell.
    pub(crate) async fn all_zones(&self) -> Result<Arc<Vec<Box<str>>>, Error> {
        let ask = async {
            match self.compute.zones().await {
                Ok(zones) => {
                    let zones = zones.into_iter().filter(Zone::is_available);
                    Ok(zones.map(|zone| zone.name).collect())
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::NotFound) =>
                {
                    Ok(Vec::new())
                }
                Err(error) => Err(failed(error)),
            }
        };
        self.catalog
            .zones
            .within(self.options.catalog_age, ask)
            .await
    }

    pub(crate) async fn zones_of(&self, pool: &PoolOptions) -> Result<Vec<Box<str>>, Error> {
        let all = self.all_zones().await?;
        if pool.availability_zones.is_empty() {
            return Ok(all.to_vec());
        }
        if !all.is_empty() {
            for zone in &pool.availability_zones {
                if !all.contains(zone) {
                    let place = format!("pool {}", pool.name);
                    let there = all.iter().map(|zone| &**zone);
                    return Err(missing(&place, "availability zone", zone, there));
                }
            }
        }
        Ok(pool.availability_zones.clone())
    }

    pub(crate) async fn networks(&self) -> Result<Arc<Networks>, Error> {
        let ask = async {
            let all = match self.network.networks().await {
                Ok(all) => all,
                // Clouds without Neutron have been seen.
                Err(error) if error.kind() == ErrorKind::NoService => Vec::new(),
                Err(error) => return Err(failed(error)),
            };
            Networks::new(self.session.settings(), all)
        };
        self.catalog
            .networks
            .within(self.options.catalog_age, ask)
            .await
    }

    /// The ids of a label's networks. Without any, the one that clouds.yaml calls the default, if it does.
    pub(crate) async fn networks_of(&self, label: &LabelOptions) -> Result<Vec<Box<str>>, Error> {
        let has_default = || {
            let networks = &self.session.settings().networks;
            networks.iter().any(|network| network.default_interface)
        };
        if label.networks.is_empty() && !has_default() {
            return Ok(Vec::new());
        }
        let networks = self.networks().await?;
        let place = format!("label {}", label.name);
        let wanted = label.networks.iter();
        let default = networks
            .default
            .iter()
            .filter(|_| label.networks.is_empty());
        let found = wanted
            .chain(default)
            .map(|name| networks.find(name, &place));
        found
            .map(|net| net.map(|net: &Net| net.id.clone()))
            .collect()
    }

    /// Security groups and the key, which Nova would only refuse when a server is made.
    pub(crate) async fn check(
        &self,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<(), Error> {
        self.zones_of(pool).await?;
        self.networks_of(label).await?;
        let age = self.options.catalog_age;
        if !pool.security_groups.is_empty() {
            let ask = async { self.network.security_groups().await.map_err(failed) };
            let groups = self.catalog.groups.within(age, ask).await?;
            for wanted in &pool.security_groups {
                if !groups
                    .iter()
                    .any(|group| group.name == *wanted || group.id == *wanted)
                {
                    let place = format!("pool {}", pool.name);
                    let there = groups.iter().map(|group| &*group.name);
                    return Err(missing(&place, "security group", wanted, there));
                }
            }
        }
        if let Some(wanted) = &label.key_name {
            let ask = async { self.compute.key_names().await.map_err(failed) };
            let keys = self.catalog.keys.within(age, ask).await?;
            if !keys.contains(wanted) {
                let place = format!("label {}", label.name);
                return Err(missing(
                    &place,
                    "key pair",
                    wanted,
                    keys.iter().map(|key| &**key),
                ));
            }
        }
        Ok(())
    }

    fn cloud_image(&self, name: &str) -> Result<&CloudImageOptions, Error> {
        let mut images = self.options.cloud_images.iter();
        images.find(|image| &*image.name == name).ok_or_else(|| {
            let provider = &self.options.owner.provider;
            Error::permanent(format!("provider {provider} has no cloud-image {name:?}"))
        })
    }

    /// The inner error says what was looked for in vain.
    async fn find_cloud_image(
        &self,
        image: &CloudImageOptions,
    ) -> Result<Result<ExternalId, String>, Error> {
        let mut nothing = String::new();
        // Whoever waits for an image looks more often than those who have one.
        for age in [self.options.image_age, self.options.list_age] {
            let ask = async { images::list(&self.session).await.map_err(failed) };
            let all = match &image.choice {
                ImageChoice::Id(id) => return Ok(Ok((&**id).into())),
                _ => self.catalog.images.within(age, ask).await?,
            };
            match choose(&image.choice, &all) {
                Ok(found) => return Ok(Ok(found.id.clone())),
                Err(reason) => nothing = reason,
            }
        }
        Ok(Err(format!("cloud-image {:?}: {nothing}", image.name)))
    }

    pub(crate) async fn image_readiness(&self, label: &LabelOptions) -> Result<Readiness, Error> {
        let LabelImage::Cloud(name) = &label.image else {
            return Ok(Readiness::Ready);
        };
        let image = self.cloud_image(name)?;
        Ok(match self.find_cloud_image(image).await? {
            Ok(_) => Readiness::Ready,
            Err(reason) => Readiness::NotReady(reason),
        })
    }

    pub(crate) async fn boot_of(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
    ) -> Result<Boot, Error> {
        match (&order.image, &label.image) {
            (BootImage::Upload { image, external_id }, _) => {
                let mut known = self.options.disk_images.iter();
                let known = known.find(|known| known.name == *image);
                Ok(Boot {
                    name: image.to_string(),
                    id: text_id(external_id)?.into(),
                    config_drive: known.and_then(|known| known.config_drive),
                })
            }
            (BootImage::Cloud, LabelImage::Cloud(name)) => {
                let image = self.cloud_image(name)?;
                let found = self.find_cloud_image(image).await?;
                let id = found.map_err(Error::permanent)?;
                Ok(Boot {
                    name: name.to_string(),
                    id: text_id(&id)?.into(),
                    config_drive: image.config_drive,
                })
            }
            (BootImage::Cloud, LabelImage::Disk(image)) => Err(Error::permanent(format!(
                "label {} boots from an upload of {image}, but there is none",
                label.name
            ))),
        }
    }
}

fn choose<'a>(choice: &'a ImageChoice, images: &'a [CloudImage]) -> Result<&'a CloudImage, String> {
    let is_called = |image: &&CloudImage, name: &str| {
        image.status == ImageStatus::Active
            && (*image.name == *name || image.id.as_text().as_deref() == Some(name))
    };
    match choice {
        ImageChoice::Filters(filters) => image_filters::newest(filters, images)
            .ok_or_else(|| image_filters::nothing_found(filters, images)),
        ImageChoice::Id(name) | ImageChoice::Name(name) => images
            .iter()
            .filter(|image| is_called(image, name))
            .max_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)))
            .ok_or_else(|| format!("the cloud has no active image with the name or id {name:?}")),
    }
}
