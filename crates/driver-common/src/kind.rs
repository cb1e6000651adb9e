//! What a driver brings: the meaning of its section of the configuration, and how drivers are made of it.
//!
//! The launcher and the builder find the driver of a provider in [`DriverKinds`] and know no driver by name.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use nodeyard_config as config;
use nodeyard_driver::backing::Backing;
use nodeyard_driver::{Driver, Error, Owner};

use crate::settings::{ImageUploadSettings, ProviderSettings};

/// One kind of provider: a value of `driver` in the configuration.
pub trait DriverKind: fmt::Debug + Send + Sync + 'static {
    /// Its section of the configuration.
    type Section: 'static;

    /// Returns the value of `driver`.
    fn name(&self) -> &'static str;

    /// Returns the settings that the launcher acts on.
    fn settings(&self, section: &Self::Section) -> Result<ProviderSettings, Error>;

    /// Returns how one of the images of the configuration is uploaded.
    fn image_upload(&self, _section: &Self::Section, _image: &str) -> ImageUploadSettings {
        ImageUploadSettings::default()
    }

    /// Makes the driver of a provider. Connects to nothing.
    fn make(
        &self,
        section: &Self::Section,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error>;
}

/// What a driver gets besides its section of the configuration.
pub struct DriverContext<'a> {
    /// Goes into the tags of everything that the driver creates.
    pub owner: Owner,
    /// The nodes of other providers. Only a launcher has them.
    pub backing: Option<&'a dyn BackingSource>,
}

impl DriverContext<'_> {
    /// Returns a context without nodes of other providers.
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            backing: None,
        }
    }
}

impl fmt::Debug for DriverContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverContext")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// Gives a driver access to nodes of other providers.
pub trait BackingSource: Sync {
    /// `identity` is the name of the requestor.
    fn open(&self, identity: &str) -> Arc<dyn Backing>;
}

/// The kinds of providers that a program has drivers for. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct DriverKinds(Vec<Arc<dyn ErasedKind>>);

/// Why a provider has no driver.
#[derive(Debug, thiserror::Error)]
pub enum MissingDriver {
    #[error(
        "the `{driver}` driver is not implemented; keep the provider in the configuration of a Nodepool launcher"
    )]
    NotImplemented { driver: &'static str },
    #[error("this program was built without the `{driver}` driver; build it with default features")]
    NotBuilt { driver: &'static str },
}

impl DriverKinds {
    /// Adds a kind.
    #[must_use]
    pub fn with(mut self, kind: impl DriverKind) -> Self {
        self.0.push(Arc::new(kind));
        self
    }

    /// Returns the values of `driver` in the configuration.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|kind| kind.name())
    }

    /// Finds the driver of a provider.
    pub fn get<'a>(
        &'a self,
        provider: &'a config::Provider,
    ) -> Result<ProviderKind<'a>, MissingDriver> {
        let driver = provider.driver.name();
        let kind = self.0.iter().find(|kind| kind.name() == driver);
        match kind {
            Some(kind) => Ok(ProviderKind {
                kind: &**kind,
                provider,
            }),
            None if provider.driver.is_implemented() => Err(MissingDriver::NotBuilt { driver }),
            None => Err(MissingDriver::NotImplemented { driver }),
        }
    }

    /// Makes the driver of a provider.
    pub fn make(
        &self,
        provider: &config::Provider,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        let kind = self.get(provider);
        kind.map_err(|error| Error::permanent(error.to_string()))?
            .make(context)
    }
}

/// A provider of the configuration and the kind of its driver.
#[derive(Debug)]
pub struct ProviderKind<'a> {
    kind: &'a dyn ErasedKind,
    provider: &'a config::Provider,
}

impl ProviderKind<'_> {
    /// Returns the settings that the launcher acts on.
    pub fn settings(&self) -> Result<ProviderSettings, Error> {
        self.kind.settings(self.provider)
    }

    /// Returns how one of the images of the configuration is uploaded.
    pub fn image_upload(&self, image: &str) -> Result<ImageUploadSettings, Error> {
        self.kind.image_upload(self.provider, image)
    }

    /// Makes the driver. Connects to nothing.
    pub fn make(&self, context: DriverContext<'_>) -> Result<Arc<dyn Driver>, Error> {
        self.kind.make(self.provider, context)
    }
}

/// A [`DriverKind`] without its type of section.
trait ErasedKind: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    fn settings(&self, provider: &config::Provider) -> Result<ProviderSettings, Error>;

    fn image_upload(
        &self,
        provider: &config::Provider,
        image: &str,
    ) -> Result<ImageUploadSettings, Error>;

    fn make(
        &self,
        provider: &config::Provider,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error>;
}

impl<K: DriverKind> ErasedKind for K {
    fn name(&self) -> &'static str {
        DriverKind::name(self)
    }

    fn settings(&self, provider: &config::Provider) -> Result<ProviderSettings, Error> {
        DriverKind::settings(self, section::<K>(provider)?)
    }

    fn image_upload(
        &self,
        provider: &config::Provider,
        image: &str,
    ) -> Result<ImageUploadSettings, Error> {
        let section = section::<K>(provider)?;
        Ok(DriverKind::image_upload(self, section, image))
    }

    fn make(
        &self,
        provider: &config::Provider,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        DriverKind::make(self, section::<K>(provider)?, context)
    }
}

fn section<K: DriverKind>(provider: &config::Provider) -> Result<&K::Section, Error> {
    let section = provider.driver.section();
    section.ok_or_else(|| {
        let section = type_name::<K::Section>();
        Error::permanent(format!(
            "failed to read the section of provider {}: it is no {section}; this is a bug in this program",
            provider.name()
        ))
    })
}
