//! Cached lists of flavors, zones, networks and images. The caches are dropped when the cloud refuses an outdated name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{Error, ExternalId, ImageFilter, ImageStatus, Readiness, image_filters};
use nodeyard_driver_common::LabelImage;
use nodeyard_driver_common::openstack::{CloudImageOptions, ImageChoice, LabelOptions};
use serde_json::json;
use tokio::time::Instant;

use super::{FakeDriver, lock};
use crate::client::{Flavor, Network};

/// How long a found image is cached. A newer one that matches as well is noticed after this time.
pub(super) const IMAGE_LIFETIME: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct CatalogCache {
    flavors: Option<Arc<[Flavor]>>,
    zones: Option<Vec<Box<str>>>,
    networks: HashMap<Box<str>, Network>,
    /// By entry of `cloud-images`: the image that was found by name, and when.
    images: HashMap<Box<str>, (Option<ExternalId>, Instant)>,
}

impl FakeDriver {
    pub(super) fn invalidate_catalog(&self) {
        *lock(&self.catalog) = CatalogCache::default();
        self.images.invalidate();
    }

    /// Returns the flavors, the smallest first.
    pub(super) async fn flavors(&self) -> Result<Arc<[Flavor]>, Error> {
        if let Some(flavors) = &lock(&self.catalog).flavors {
            return Ok(Arc::clone(flavors));
        }
        let mut flavors: Vec<Flavor> = self.client.call("list_flavors", json!({})).await?;
        flavors.sort_by(|a, b| (a.ram, &a.name).cmp(&(b.ram, &b.name)));
        let flavors: Arc<[Flavor]> = flavors.into();
        lock(&self.catalog).flavors = Some(Arc::clone(&flavors));
        Ok(flavors)
    }

    /// Returns the flavor of a label: with `min-ram` the smallest one that has as much and whose name contains
    /// `flavor-name`, otherwise the one whose name or id is `flavor-name`.
    pub(super) async fn flavor_of(&self, label: &LabelOptions) -> Result<Flavor, Error> {
        let name = label.flavor_name.as_deref();
        let fits = |flavor: &&Flavor| match label.min_ram {
            Some(ram) => {
                i64::try_from(ram).is_ok_and(|ram| flavor.ram >= ram)
                    && name.is_none_or(|name| flavor.name.contains(name))
            }
            None => name.is_some_and(|name| flavor.name == name || flavor.id == name),
        };
        let known = self.flavors().await?;
        if let Some(flavor) = known.iter().find(fits) {
            return Ok(flavor.clone());
        }
        // It may have been added since.
        lock(&self.catalog).flavors = None;
        let flavors = self.flavors().await?;
        flavors.iter().find(fits).cloned().ok_or_else(|| {
            Error::permanent(format!(
                "label {}: the cloud has no flavor that fits flavor-name {:?} and min-ram {:?}",
                label.name, label.flavor_name, label.min_ram
            ))
        })
    }

    pub(super) async fn all_zones(&self) -> Result<Vec<Box<str>>, Error> {
        if let Some(zones) = &lock(&self.catalog).zones {
            return Ok(zones.clone());
        }
        let zones: Vec<Box<str>> = self
            .client
            .call("list_availability_zone_names", json!({}))
            .await?;
        lock(&self.catalog).zones = Some(zones.clone());
        Ok(zones)
    }

    pub(super) async fn networks_of(&self, label: &LabelOptions) -> Result<Vec<Network>, Error> {
        let mut networks = Vec::with_capacity(label.networks.len());
        for name in &label.networks {
            let known = lock(&self.catalog).networks.get(name).cloned();
            networks.push(match known {
                Some(network) => network,
                None => self.look_up_network(name).await?,
            });
        }
        Ok(networks)
    }

    async fn look_up_network(&self, name: &str) -> Result<Network, Error> {
        let network: Option<Network> = self
            .client
            .call("get_network", json!({"name_or_id": name}))
            .await?;
        let network = network
            .ok_or_else(|| Error::permanent(format!("the cloud has no network {name:?}")))?;
        lock(&self.catalog)
            .networks
            .insert(name.into(), network.clone());
        Ok(network)
    }

    fn cloud_image(&self, name: &str) -> Result<&CloudImageOptions, Error> {
        self.options
            .cloud
            .cloud_images
            .iter()
            .find(|image| &*image.name == name)
            .ok_or_else(|| Error::permanent(format!("there is no cloud-image {name:?}")))
    }

    pub(super) async fn image_readiness(&self, label: &LabelOptions) -> Result<Readiness, Error> {
        let LabelImage::Cloud(name) = &label.image else {
            return Ok(Readiness::Ready);
        };
        Ok(match self.find_cloud_image(name).await? {
            Ok(_) => Readiness::Ready,
            Err(reason) => Readiness::NotReady(reason),
        })
    }

    /// Returns the image to boot from, and whether to use a config drive.
    pub(super) async fn boot_image(&self, name: &str) -> Result<(ExternalId, Option<bool>), Error> {
        let config_drive = self.cloud_image(name)?.config_drive;
        match self.find_cloud_image(name).await? {
            Ok(id) => Ok((id, config_drive)),
            Err(reason) => Err(Error::permanent(format!("cloud-image {name:?}: {reason}"))),
        }
    }

    /// The inner error says which image is missing.
    async fn find_cloud_image(&self, name: &str) -> Result<Result<ExternalId, String>, Error> {
        match &self.cloud_image(name)?.choice {
            ImageChoice::Id(id) => Ok(Ok((&**id).into())),
            ImageChoice::Name(wanted) => {
                let found = self.find_by_name(name, wanted).await?;
                Ok(found.ok_or_else(|| format!("there is no active image named {wanted:?}")))
            }
            ImageChoice::Filters(filters) => self.find_by_filters(filters).await,
        }
    }

    async fn find_by_filters(
        &self,
        filters: &[ImageFilter],
    ) -> Result<Result<ExternalId, String>, Error> {
        let images = self.images.recent(self.client.list_images()).await?;
        if let Some(image) = image_filters::newest(filters, &*images) {
            return Ok(Ok(image.id.clone()));
        }
        // A label without an image is checked more often.
        let interval = self.options.image_check_interval;
        let images = self
            .images
            .not_older_than(interval, self.client.list_images())
            .await?;
        let found = image_filters::newest(filters, &*images);
        let found = found.map(|image| image.id.clone());
        Ok(found.ok_or_else(|| image_filters::nothing_found(filters, &*images)))
    }

    async fn find_by_name(&self, name: &str, wanted: &str) -> Result<Option<ExternalId>, Error> {
        if let Some((found, at)) = lock(&self.catalog).images.get(name) {
            let lifetime = if found.is_some() {
                IMAGE_LIFETIME
            } else {
                self.options.image_check_interval
            };
            if at.elapsed() < lifetime {
                return Ok(found.clone());
            }
        }
        let image = self.client.get_image(wanted).await?;
        let image = image.filter(|image| image.status == ImageStatus::Active);
        let found = image.map(|image| image.id);
        lock(&self.catalog)
            .images
            .insert(name.into(), (found.clone(), Instant::now()));
        Ok(found)
    }
}
