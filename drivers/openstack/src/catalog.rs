//! What the cloud offers, such as flavors and networks, and what a label uses of it.
//!
//! Lists of what changes seldom are cached for minutes. If a list lacks something, it is fetched again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{
    BootImage, CloudImage, CreateOrder, Error, ExternalId, ImageStatus, Readiness, image_filters,
};
use nodeyard_driver_common::LabelImage;
use nodeyard_driver_common::openstack::{
    CloudImageOptions, ImageChoice, LabelOptions, PoolOptions,
};
use nodeyard_openstack::{ErrorKind, Flavor, Net, SecurityGroup, Zone};

use crate::cache::ResponseCache;
use crate::driver::{OpenStackDriver, text_id};
use crate::failure::{driver_error, not_found};
use crate::images;
use crate::networks::Networks;

/// How old a list may be that lacks something. Many operations may miss the same at once.
const MISS_AGE: Duration = Duration::from_secs(5);

/// Cached lists.
#[derive(Debug, Default)]
pub(crate) struct CatalogCache {
    flavors: ResponseCache<Vec<Flavor>>,
    zones: ResponseCache<Vec<Zone>>,
    networks: ResponseCache<Networks>,
    groups: ResponseCache<Vec<SecurityGroup>>,
    keys: ResponseCache<Vec<Box<str>>>,
    images: ResponseCache<Vec<CloudImage>>,
}

impl CatalogCache {
    pub(crate) async fn forget(&self) {
        self.flavors.forget().await;
        self.zones.forget().await;
        self.networks.forget().await;
        self.groups.forget().await;
        self.keys.forget().await;
        self.images.forget().await;
    }

    pub(crate) async fn forget_zones(&self) {
        self.zones.forget().await;
    }

    pub(crate) async fn forget_images(&self) {
        self.images.forget().await;
    }
}

/// What a server boots from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BootSource {
    /// Its name in the configuration.
    pub(crate) name: String,
    pub(crate) id: Box<str>,
    pub(crate) config_drive: Option<bool>,
}

impl OpenStackDriver {
    /// Finds something in a cached list, or in a newer one if the first lacks it.
    async fn find_in<T, R, L>(
        &self,
        list: impl Fn(Duration) -> L,
        find: impl Fn(&T) -> Result<R, Error>,
    ) -> Result<R, Error>
    where
        L: Future<Output = Result<Arc<T>, Error>>,
    {
        let age = self.options.catalog_age;
        let known = list(age).await?;
        match find(&known) {
            Ok(found) => Ok(found),
            Err(_) => find(&*list(age.min(MISS_AGE)).await?),
        }
    }

    pub(crate) async fn flavors(&self) -> Result<Arc<Vec<Flavor>>, Error> {
        self.flavors_within(self.options.catalog_age).await
    }

    /// Returns the flavors, smallest first.
    async fn flavors_within(&self, age: Duration) -> Result<Arc<Vec<Flavor>>, Error> {
        let fetch = async {
            let mut flavors = self.compute.flavors().await.map_err(driver_error)?;
            flavors.sort_by(|a, b| (a.ram, &a.name).cmp(&(b.ram, &b.name)));
            Ok(flavors)
        };
        self.catalog.flavors.within(age, fetch).await
    }

    pub(crate) async fn flavor_of(&self, label: &LabelOptions) -> Result<Flavor, Error> {
        let list = |age| self.flavors_within(age);
        self.find_in(list, |flavors: &Vec<Flavor>| flavor_for(label, flavors))
            .await
    }

    /// Returns the zones; none if the account may not list them.
    async fn zones_within(&self, age: Duration) -> Result<Arc<Vec<Zone>>, Error> {
        let fetch = async {
            match self.compute.zones().await {
                Ok(zones) => Ok(zones),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::NotFound) =>
                {
                    Ok(Vec::new())
                }
                Err(error) => Err(driver_error(error)),
            }
        };
        self.catalog.zones.within(age, fetch).await
    }

    pub(crate) async fn zones_of(&self, pool: &PoolOptions) -> Result<Vec<Box<str>>, Error> {
        self.find_in(|age| self.zones_within(age), |all| zones_for(pool, all))
            .await
    }

    pub(crate) async fn networks(&self) -> Result<Arc<Networks>, Error> {
        self.networks_within(self.options.catalog_age).await
    }

    async fn networks_within(&self, age: Duration) -> Result<Arc<Networks>, Error> {
        let fetch = async {
            let all = match self.network.networks().await {
                Ok(all) => all,
                // There are clouds without Neutron.
                Err(error) if error.kind() == ErrorKind::NoService => Vec::new(),
                Err(error) => return Err(driver_error(error)),
            };
            Networks::new(self.session.settings(), all)
        };
        self.catalog.networks.within(age, fetch).await
    }

    /// Returns the ids of a label's networks, or of the default in clouds.yaml if the label has none.
    pub(crate) async fn networks_of(&self, label: &LabelOptions) -> Result<Vec<Box<str>>, Error> {
        let has_default = || {
            let networks = &self.session.settings().networks;
            networks.iter().any(|network| network.default_interface)
        };
        if label.networks.is_empty() && !has_default() {
            return Ok(Vec::new());
        }
        let place = format!("label {}", label.name);
        let choose = |networks: &Networks| {
            let wanted = label.networks.iter();
            let default = networks.default.iter();
            let default = default.filter(|_| label.networks.is_empty());
            let found = wanted
                .chain(default)
                .map(|name| networks.find(name, &place));
            found
                .map(|net| net.map(|net: &Net| net.id.clone()))
                .collect()
        };
        self.find_in(|age| self.networks_within(age), choose).await
    }

    /// Checks what Nova checks only when it creates a server.
    pub(crate) async fn check(
        &self,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<(), Error> {
        self.zones_of(pool).await?;
        self.networks_of(label).await?;
        self.check_groups(pool).await?;
        self.check_key(label).await
    }

    async fn check_groups(&self, pool: &PoolOptions) -> Result<(), Error> {
        if pool.security_groups.is_empty() {
            return Ok(());
        }
        let list = |age| {
            let fetch = async { self.network.security_groups().await.map_err(driver_error) };
            self.catalog.groups.within(age, fetch)
        };
        let place = format!("pool {}", pool.name);
        let check = |groups: &Vec<SecurityGroup>| {
            let is_there = |wanted: &str| {
                let mut groups = groups.iter();
                groups.any(|group| *group.name == *wanted || *group.id == *wanted)
            };
            let mut wanted = pool.security_groups.iter();
            match wanted.find(|wanted| !is_there(wanted)) {
                Some(wanted) => {
                    let there = groups.iter().map(|group| &*group.name);
                    Err(not_found(&place, "security group", wanted, there))
                }
                None => Ok(()),
            }
        };
        self.find_in(list, check).await
    }

    async fn check_key(&self, label: &LabelOptions) -> Result<(), Error> {
        let Some(wanted) = &label.key_name else {
            return Ok(());
        };
        let list = |age| {
            let fetch = async { self.compute.key_names().await.map_err(driver_error) };
            self.catalog.keys.within(age, fetch)
        };
        let place = format!("label {}", label.name);
        let check = |keys: &Vec<Box<str>>| {
            if keys.contains(wanted) {
                return Ok(());
            }
            let there = keys.iter().map(|key| &**key);
            Err(not_found(&place, "key pair", wanted, there))
        };
        self.find_in(list, check).await
    }

    fn cloud_image(&self, name: &str) -> Result<&CloudImageOptions, Error> {
        let mut images = self.options.cloud.cloud_images.iter();
        images.find(|image| &*image.name == name).ok_or_else(|| {
            let provider = &self.options.owner.provider;
            Error::permanent(format!("provider {provider} has no cloud-image {name:?}"))
        })
    }

    /// The inner error says what was not found.
    async fn find_cloud_image(
        &self,
        image: &CloudImageOptions,
    ) -> Result<Result<ExternalId, String>, Error> {
        let mut missing = String::new();
        // A missing image is looked up more often than an existing one.
        for age in [self.options.image_age, self.options.list_age] {
            let fetch = async { images::list(&self.session).await.map_err(driver_error) };
            let all = match &image.choice {
                ImageChoice::Id(id) => return Ok(Ok((&**id).into())),
                _ => self.catalog.images.within(age, fetch).await?,
            };
            match choose(&image.choice, &all) {
                Ok(found) => return Ok(Ok(found.id.clone())),
                Err(reason) => missing = reason,
            }
        }
        Ok(Err(format!("cloud-image {:?}: {missing}", image.name)))
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
    ) -> Result<BootSource, Error> {
        match (&order.image, &label.image) {
            (BootImage::Upload { image, external_id }, _) => {
                let mut known = self.options.cloud.disk_images.iter();
                let known = known.find(|known| known.name == *image);
                Ok(BootSource {
                    name: image.to_string(),
                    id: text_id(external_id)?.into(),
                    config_drive: known.and_then(|known| known.config_drive),
                })
            }
            (BootImage::Cloud, LabelImage::Cloud(name)) => {
                let image = self.cloud_image(name)?;
                let found = self.find_cloud_image(image).await?;
                let id = found.map_err(Error::permanent)?;
                Ok(BootSource {
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

/// Returns the available zones of a pool. If none is available it returns all that are configured: servers wait for one of
/// them.
fn zones_for(pool: &PoolOptions, all: &[Zone]) -> Result<Vec<Box<str>>, Error> {
    let named = |name: &str| all.iter().find(|zone| *zone.name == *name);
    let configured = &pool.availability_zones;
    if configured.is_empty() {
        let available = all.iter().filter(|zone| zone.is_available());
        return Ok(available.map(|zone| zone.name.clone()).collect());
    }
    if all.is_empty() {
        return Ok(configured.clone());
    }
    if let Some(unknown) = configured.iter().find(|name| named(name).is_none()) {
        let there = all.iter().map(|zone| &*zone.name);
        let place = format!("pool {}", pool.name);
        return Err(not_found(&place, "availability zone", unknown, there));
    }
    let mut available = configured.clone();
    available.retain(|name| named(name).is_some_and(Zone::is_available));
    if available.is_empty() {
        return Ok(configured.clone());
    }
    Ok(available)
}

/// Returns, with `min-ram`, the smallest flavor that has it and whose name contains `flavor-name`; otherwise the one with
/// exactly that name. `flavors` has the smallest first.
fn flavor_for(label: &LabelOptions, flavors: &[Flavor]) -> Result<Flavor, Error> {
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
            found.ok_or_else(|| not_found(&place, "flavor", name, there()))
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
