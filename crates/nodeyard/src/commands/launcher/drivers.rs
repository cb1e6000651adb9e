//! Creates the drivers of providers from their configuration.

#[cfg(feature = "kubernetes")]
mod clusters;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_config::{self as config, Config, Container, Fake, Qemu};
use nodeyard_driver::{Driver, Error, Owner};
use nodeyard_driver_container::{self as container, ContainerDriver};
use nodeyard_driver_fake as fake;
use nodeyard_driver_metastatic::{self as metastatic, MetastaticDriver};
#[cfg(feature = "openstack")]
use nodeyard_driver_openstack::{self as openstack, OpenStackDriver};
use nodeyard_driver_qemu::{self as qemu, QemuDriver};
use nodeyard_driver_static::StaticDriver;
use nodeyard_launcher::Surroundings;
use nodeyard_model::Clock;
use nodeyard_nodescan::Scanner;
use tokio::sync::watch;

use crate::store_access;

/// Creates drivers. There is one per process, so that all users see the same simulated clouds.
pub(crate) struct DriverBuilder {
    /// The URL of simulated clouds in another process.
    cloud_url: Option<String>,
    /// The simulated clouds in this process, which survive configuration changes.
    clouds: Mutex<HashMap<String, Arc<fake::World>>>,
    scanner: Arc<dyn Scanner>,
    /// Some drivers need more than their own section to know their built images.
    config: watch::Receiver<Arc<Config>>,
}

impl DriverBuilder {
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
        let state_dir = store_access::state_dir(Some(&config)).map_err(|cause| {
            Error::permanent("failed to find the state directory for machines").because(cause)
        })?;
        let username = |image: &str| Some(config.images.get(image)?.username.clone());
        let options = qemu::Options::of(section, owner, &state_dir, username)?;
        Ok(QemuDriver::new(options))
    }

    fn fake(&self, section: &Fake, name: &str, owner: Owner) -> Result<fake::FakeDriver, Error> {
        let mut clouds = self.clouds.lock().unwrap_or_else(PoisonError::into_inner);
        let world = clouds.entry(name.to_owned()).or_insert_with(|| {
            let options = HashMap::from([(name.to_owned(), fake::Simulate::of(&section.simulate))]);
            Arc::new(fake::World::new(options, Clock::system()))
        });
        let transport = fake::connect(self.cloud_url.as_deref(), world, name).map_err(|cause| {
            Error::permanent("failed to connect to the simulated cloud").because(cause)
        })?;
        let options = fake::Options::of(section, owner)?;
        Ok(fake::FakeDriver::new(options, transport))
    }

    /// Creates a driver that does not depend on other providers.
    pub(crate) fn of_cloud(
        &self,
        provider: &config::Provider,
        owner: Owner,
    ) -> Result<Arc<dyn Driver>, Error> {
        match &provider.driver {
            config::Driver::Static(section) => Ok(Arc::new(StaticDriver::new(
                owner.provider,
                section,
                Arc::clone(&self.scanner),
            ))),
            config::Driver::Fake(section) => {
                Ok(Arc::new(self.fake(section, provider.name(), owner)?))
            }
            config::Driver::Container(section) => Ok(Arc::new(self.container(section, owner)?)),
            config::Driver::Metastatic(_) => Err(Error::permanent(
                "slots on machines of other providers are managed by a launcher only",
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
                let around = openstack::ProcessEnvironment::current();
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
            config::Driver::Aws(_) => Err(Error::permanent(
                "the `aws` driver is not implemented; keep the provider in the configuration of a Nodepool launcher",
            )),
            #[cfg(not(all(feature = "kubernetes", feature = "openstack")))]
            other => Err(Error::permanent(format!(
                "this program was built without the `{}` driver; build it with default features",
                other.name()
            ))),
        }
    }
}

impl nodeyard_launcher::DriverFactory for DriverBuilder {
    fn make(
        &self,
        provider: &config::Provider,
        around: Surroundings<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        match &provider.driver {
            config::Driver::Metastatic(section) => {
                let backing = around.backing(&metastatic::identity(&around.owner.provider));
                let driver = MetastaticDriver::new(section, around.owner, backing, Clock::system());
                Ok(Arc::new(driver))
            }
            _ => self.of_cloud(provider, around.owner),
        }
    }
}

impl nodeyard_builder::worker::DriverFactory for DriverBuilder {
    fn make(&self, provider: &config::Provider, owner: Owner) -> Result<Arc<dyn Driver>, Error> {
        self.of_cloud(provider, owner)
    }
}
