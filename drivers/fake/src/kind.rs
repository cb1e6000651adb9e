//! `driver: fake` as the launcher and the builder see it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_config::Fake;
use nodeyard_driver::{Driver, Error, Poll};
use nodeyard_driver_common::openstack::{image_upload_settings, provider_settings};
use nodeyard_driver_common::{DriverContext, DriverKind, ImageUploadSettings, ProviderSettings};
use nodeyard_model::Clock;

use crate::transport::{self, Transport};
use crate::{FakeDriver, Options, Simulate, World};

/// Connects drivers with simulated clouds.
pub trait Connector: Send + Sync + 'static {
    fn connect(&self, provider: &str, section: &Fake) -> Result<Arc<dyn Transport>, Error>;
}

/// Simulated clouds in this process, which survive configuration changes, or in another one.
#[derive(Debug)]
pub struct SimulatedClouds {
    url: Option<String>,
    worlds: Mutex<HashMap<String, Arc<World>>>,
}

impl SimulatedClouds {
    /// `url` is that of clouds in another process.
    pub fn new(url: Option<String>) -> Self {
        Self {
            url,
            worlds: Mutex::default(),
        }
    }

    fn world(&self, provider: &str, section: &Fake) -> Arc<World> {
        let mut worlds = self.worlds.lock().unwrap_or_else(PoisonError::into_inner);
        let world = worlds.entry(provider.to_owned()).or_insert_with(|| {
            let simulate = Simulate::of(&section.simulate);
            let options = HashMap::from([(provider.to_owned(), simulate)]);
            Arc::new(World::new(options, Clock::system()))
        });
        Arc::clone(world)
    }
}

impl Connector for SimulatedClouds {
    fn connect(&self, provider: &str, section: &Fake) -> Result<Arc<dyn Transport>, Error> {
        let world = self.world(provider, section);
        transport::connect(self.url.as_deref(), &world, provider).map_err(|cause| {
            Error::permanent("failed to connect to the simulated cloud").because(cause)
        })
    }
}

pub struct FakeKind {
    connector: Arc<dyn Connector>,
    poll: Poll,
}

impl FakeKind {
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            connector,
            poll: Poll::default(),
        }
    }

    /// Sets how often the drivers look at the clouds.
    #[must_use]
    pub fn with_poll(mut self, poll: Poll) -> Self {
        self.poll = poll;
        self
    }
}

impl fmt::Debug for FakeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeKind")
    }
}

impl DriverKind for FakeKind {
    type Section = Fake;

    fn name(&self) -> &'static str {
        "fake"
    }

    fn settings(&self, section: &Fake) -> Result<ProviderSettings, Error> {
        provider_settings(&section.settings)
    }

    fn image_upload(&self, section: &Fake, image: &str) -> ImageUploadSettings {
        image_upload_settings(&section.settings, image)
    }

    fn make(&self, section: &Fake, context: DriverContext<'_>) -> Result<Arc<dyn Driver>, Error> {
        let transport = self
            .connector
            .connect(context.owner.provider.as_str(), section)?;
        let options = Options {
            poll: self.poll,
            ..Options::of(section, context.owner)?
        };
        Ok(Arc::new(FakeDriver::new(options, transport)))
    }
}
