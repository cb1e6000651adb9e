//! What is said of a cloud, as types. [`nodeyard_config::clouds`] finds the files and puts together what they say.

mod settings;

use nodeyard_config::clouds;
pub use nodeyard_config::clouds::{CloudsError as SettingsError, ProcessEnvironment};

pub use settings::{
    CloudSettings, Credentials, Domain, NetworkSettings, Scope, ServiceSettings, Tls, User,
};

/// Everything that was found.
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

    /// One cloud, one region. Without a name the one that the environment names, or the only one there is; without a
    /// region the first.
    pub fn cloud(
        &self,
        name: Option<&str>,
        region: Option<&str>,
    ) -> Result<CloudSettings, SettingsError> {
        settings::read(&self.0.cloud(name, region)?)
    }
}
