//! From the configuration of a provider to its driver.

#[cfg(feature = "kubernetes")]
mod clusters;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_config::{
    self as config, Config, Container, Fake, OpenStackLabel, OpenStackSettings, Qemu,
};
use nodeyard_driver::{Driver, Error, ImageFilter, Owner};
use nodeyard_driver_container::{self as container, ContainerDriver};
use nodeyard_driver_fake as fake;
use nodeyard_driver_metastatic::{self as metastatic, MetastaticDriver};
#[cfg(feature = "openstack")]
use nodeyard_driver_openstack::{self as openstack, OpenStackDriver};
use nodeyard_driver_qemu::{self as qemu, QemuDriver};
use nodeyard_driver_static::StaticDriver;
use nodeyard_launcher::Surroundings;
use nodeyard_model::ImageName;
use nodeyard_nodescan::Scanner;
use tokio::sync::watch;

use crate::store_access;

/// Makes drivers. Everything in this process shares one, so that it sees the same simulated clouds.
pub(crate) struct Drivers {
    /// Where simulated clouds are, if not in this process.
    cloud_url: Option<String>,
    /// Simulated clouds in this process; they outlive changes of the configuration.
    clouds: Mutex<HashMap<String, Arc<fake::World>>>,
    scanner: Arc<dyn Scanner>,
    /// Of images that are built, some drivers have to know more than their own section says.
    config: watch::Receiver<Arc<Config>>,
}

impl Drivers {
    pub(super) fn new(
        cloud_url: Option<String>,
        scanner: Arc<dyn Scanner>,
        config: watch::Receiver<Arc<Config>>,
    ) -> Self {
        Self {
            cloud_url,
            clouds: Mutex::default(),
            scanner,
            config,
        }
    }

    fn container(&self, section: &Container, owner: Owner) -> Result<ContainerDriver, Error> {
        let config = Arc::clone(&self.config.borrow());
        let username = |image: &str| Some(config.images.get(image)?.username.clone());
        let options = container::Options::of(section, owner, username)?;
        let socket = Arc::new(container::Socket::find(section.socket.as_deref()));
        Ok(ContainerDriver::new(
            options,
            socket,
            Arc::clone(&self.scanner),
        ))
    }

    fn qemu(&self, section: &Qemu, owner: Owner) -> Result<QemuDriver, Error> {
        let config = Arc::clone(&self.config.borrow());
        let state_dir = store_access::state_dir(Some(&config))
            .map_err(|cause| Error::permanent("there is no place for machines").because(cause))?;
        let username = |image: &str| Some(config.images.get(image)?.username.clone());
        let options = qemu::Options::of(section, owner, &state_dir, username)?;
        Ok(QemuDriver::new(options))
    }

    fn fake(&self, section: &Fake, name: &str, owner: Owner) -> Result<fake::FakeDriver, Error> {
        let mut clouds = self.clouds.lock().unwrap_or_else(PoisonError::into_inner);
        let world = clouds.entry(name.to_owned()).or_insert_with(|| {
            let options = HashMap::from([(name.to_owned(), simulate(&section.simulate))]);
            Arc::new(fake::World::new(options, fake::Clock::system()))
        });
        let transport = fake::connect(self.cloud_url.as_deref(), world, name).map_err(|cause| {
            Error::permanent("the simulated cloud cannot be reached").because(cause)
        })?;
        Ok(fake::FakeDriver::new(options(section, owner)?, transport))
    }

    /// A driver that needs no other provider.
    pub(crate) fn of_cloud(
        &self,
        provider: &config::Provider,
        owner: Owner,
    ) -> Result<Arc<dyn Driver>, Error> {
        match &provider.driver {
            config::Driver::Static(section) => Ok(Arc::new(StaticDriver::new(
                section,
                Arc::clone(&self.scanner),
            ))),
            config::Driver::Fake(section) => {
                Ok(Arc::new(self.fake(section, provider.name(), owner)?))
            }
            config::Driver::Container(section) => Ok(Arc::new(self.container(section, owner)?)),
            config::Driver::Metastatic(_) => Err(Error::permanent(
                "its machines are those of other providers; only a launcher deals with them",
            )),
            config::Driver::Qemu(section) => Ok(Arc::new(self.qemu(section, owner)?)),
            #[cfg(feature = "kubernetes")]
            config::Driver::Kubernetes(section) => {
                let scanner = Arc::clone(&self.scanner);
                Ok(clusters::kubernetes(section, owner, scanner))
            }
            #[cfg(feature = "openstack")]
            config::Driver::OpenStack(section) => {
                let options = openstack::Options::of(section, owner)?;
                let around = openstack::Surroundings::of_process();
                Ok(Arc::new(OpenStackDriver::connect(options, &around)?))
            }
            #[cfg(feature = "kubernetes")]
            config::Driver::OpenShift(section) => {
                let scanner = Arc::clone(&self.scanner);
                Ok(clusters::openshift(section, owner, scanner))
            }
            #[cfg(feature = "kubernetes")]
            config::Driver::OpenShiftPods(section) => {
                let scanner = Arc::clone(&self.scanner);
                Ok(clusters::openshiftpods(section, owner, scanner))
            }
            other => Err(Error::permanent(format!(
                "the `{}` driver is not part of this program",
                other.name()
            ))),
        }
    }
}

impl nodeyard_launcher::DriverFactory for Drivers {
    fn make(
        &self,
        provider: &config::Provider,
        around: Surroundings<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        match &provider.driver {
            config::Driver::Metastatic(section) => {
                let backing = around.backing(&metastatic::identity(&around.owner.provider));
                let driver = MetastaticDriver::new(section, around.owner, backing);
                Ok(Arc::new(driver))
            }
            _ => self.of_cloud(provider, around.owner),
        }
    }
}

impl nodeyard_builder::worker::DriverFactory for Drivers {
    fn make(&self, provider: &config::Provider, owner: Owner) -> Result<Arc<dyn Driver>, Error> {
        self.of_cloud(provider, owner)
    }
}

fn options(section: &Fake, owner: Owner) -> Result<fake::Options, Error> {
    let settings: &OpenStackSettings = &section.settings;
    let mut pools = Vec::new();
    for pool in &settings.pools {
        let labels = pool.labels.iter().map(label).collect::<Result<_, _>>()?;
        pools.push(fake::PoolOptions {
            name: pool.common.name.as_str().into(),
            availability_zones: texts(&pool.availability_zones),
            security_groups: texts(&pool.security_groups),
            auto_floating_ip: pool.auto_floating_ip,
            labels,
        });
    }
    let cloud_images = settings
        .cloud_images
        .iter()
        .map(|image| fake::CloudImageOptions {
            name: image.name.as_str().into(),
            choice: choice(image),
            config_drive: image.config_drive,
        });
    let mut disk_images = Vec::new();
    for image in &settings.diskimages {
        disk_images.push(fake::DiskImageOptions {
            name: image_name(&image.name)?,
            config_drive: image.config_drive,
        });
    }
    Ok(fake::Options {
        cloud: section.cloud.as_str().into(),
        region: settings.region_name.as_deref().map(Into::into),
        pools,
        cloud_images: cloud_images.collect(),
        disk_images,
        clean_floating_ips: settings.clean_floating_ips,
        port_cleanup_interval: *settings.port_cleanup_interval,
        // A simulated cloud has no limit of calls; the configured rate is that of the real one.
        ..fake::Options::new(owner)
    })
}

fn choice(image: &config::OpenStackCloudImage) -> fake::ImageChoice {
    if let Some(id) = &image.image_id {
        return fake::ImageChoice::Id(id.as_str().into());
    }
    match &image.image_filters {
        Some(filters) => fake::ImageChoice::Filters(
            filters
                .iter()
                .map(|filter| ImageFilter {
                    name: filter.name.clone(),
                    values: filter.values.clone(),
                })
                .collect(),
        ),
        None => {
            let name = image.image_name.as_deref().unwrap_or(image.name.as_str());
            fake::ImageChoice::Name(name.into())
        }
    }
}

fn label(label: &OpenStackLabel) -> Result<fake::LabelOptions, Error> {
    let image = match (&label.diskimage, &label.cloud_image) {
        (Some(image), _) => fake::LabelImage::Disk(image_name(image)?),
        (None, Some(image)) => fake::LabelImage::Cloud(image.as_str().into()),
        (None, None) => {
            return Err(Error::permanent(format!(
                "label {} has no image",
                label.name
            )));
        }
    };
    let properties = label.instance_properties.iter().map(|(key, value)| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), ToOwned::to_owned);
        (key.clone(), text)
    });
    let dynamic = label.dynamic_instance_properties.iter();
    Ok(fake::LabelOptions {
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

pub(crate) fn simulate(simulate: &config::Simulate) -> fake::Simulate {
    let span = |time: config::SimulatedTime| fake::Span {
        min: *time.min,
        max: *time.max,
    };
    let quota = &simulate.quota;
    let failures = simulate.failures.iter().map(|(call, failure)| {
        let rates = fake::FailureRates {
            error: failure.error,
            lost: failure.lost,
            hang: failure.hang,
            class: failure.class.clone(),
        };
        (call.clone(), rates)
    });
    let flavors = simulate.flavors.iter().map(|flavor| fake::FlavorOptions {
        name: flavor.name.clone(),
        ram: flavor.ram,
        vcpus: flavor.vcpus,
        disk: flavor.disk,
    });
    fake::Simulate {
        boot_time: span(simulate.boot_time),
        delete_time: span(simulate.delete_time),
        upload_time: span(simulate.upload_time),
        quota: fake::Quota {
            cores: quota.cores,
            instances: quota.instances,
            ram: quota.ram,
            volumes: quota.volumes,
            volume_gb: quota.volume_gb,
        },
        failures: failures.collect(),
        zones: simulate.zones.clone(),
        flavors: flavors.collect(),
        images: simulate.images.clone(),
        networks: simulate.networks.clone(),
        seed: simulate.seed,
    }
}

fn image_name(name: &str) -> Result<ImageName, Error> {
    ImageName::new(name).map_err(|cause| Error::permanent("an image cannot be used").because(cause))
}

fn texts(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}
