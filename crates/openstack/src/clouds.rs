//! The settings of clouds. [`nodeyard_config::clouds`] finds the files and merges them.

mod settings;

use nodeyard_config::clouds;
pub use nodeyard_config::clouds::{CloudsError as SettingsError, ProcessEnvironment};

pub use settings::{
    CloudSettings, Credentials, Domain, NetworkSettings, Scope, ServiceSettings, Tls, User,
};

/// All configured clouds.
#[derive(Debug, Clone)]
pub struct Clouds(clouds::CloudsYaml);

impl Clouds {
    /// Reads the files that openstacksdk would read.
    pub fn find(around: &ProcessEnvironment) -> Result<Self, SettingsError> {
        clouds::CloudsYaml::find(around).map(Self)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Returns the settings of one region of one cloud. Without a name, of the cloud that the environment names, or of the
    /// only one; without a region, of the first.
    pub fn cloud(
        &self,
        name: Option<&str>,
        region: Option<&str>,
    ) -> Result<CloudSettings, SettingsError> {
        settings::read(&self.0.cloud(name, region)?)
    }
}
