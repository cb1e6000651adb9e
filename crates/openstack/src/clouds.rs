//! What clouds.yaml, its companions and the environment say of a cloud, as openstacksdk reads them.
//!
//! `files` finds and reads, `merge` puts together what several places say, `settings` makes types of it. openstacksdk
//! is the authority for what a key means; a test asks it. What differs on purpose: a file that cannot be understood is
//! an error here and not skipped, and the profiles of providers are those of clouds-public.yaml only, for the ones that
//! openstacksdk carries in itself age with it.

mod files;
mod merge;
mod settings;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use files::Surroundings;
pub use settings::{
    CloudSettings, Credentials, Domain, NetworkSettings, Scope, ServiceSettings, Tls, User,
};

pub(crate) type Object = Map<String, Value>;

/// Everything that was found.
#[derive(Clone)]
pub struct Clouds {
    /// Where the clouds are from, if there is a file at all.
    file: Option<PathBuf>,
    clouds: BTreeMap<String, Object>,
    /// Of clouds-public.yaml.
    profiles: BTreeMap<String, Object>,
    /// The section `client`.
    client: Object,
    /// Who is meant if nobody is named.
    default: Option<String>,
    /// Whether machines are reached over IPv4 only, as the environment says.
    force_ipv4: Option<bool>,
    home: Option<PathBuf>,
}

impl Clouds {
    /// Reads the files that openstacksdk would read.
    pub fn find(around: &Surroundings) -> Result<Self, SettingsError> {
        files::find(around)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.clouds.keys().map(String::as_str)
    }

    /// One cloud, one region. Without a name the one that the environment names, or the only one there is; without a
    /// region the first.
    pub fn cloud(
        &self,
        name: Option<&str>,
        region: Option<&str>,
    ) -> Result<CloudSettings, SettingsError> {
        let name = name.or(self.default.as_deref()).ok_or_else(|| {
            SettingsError::new(format!("no cloud is named; there are {}", self.known()))
        })?;
        let merged = merge::merged(self, name, region)?;
        settings::read(self, name, &merged)
    }

    /// All clouds, for a text.
    fn known(&self) -> String {
        let names: Vec<_> = self.names().collect();
        match (&self.file, names.is_empty()) {
            (_, false) => names.join(", "),
            (Some(file), true) => format!("none in {}", file.display()),
            (None, true) => "none: clouds.yaml is neither here, nor in ~/.config/openstack, nor in /etc/openstack, and OS_CLIENT_CONFIG_FILE does not name one".to_owned(),
        }
    }
}

/// There are passwords in it.
impl std::fmt::Debug for Clouds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.clouds.keys()).finish()
    }
}

/// Why what was said of a cloud is of no use. Names the place, never a secret.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct SettingsError {
    text: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl SettingsError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            source: None,
        }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn unreadable(path: &Path, cause: std::io::Error) -> Self {
        Self::new(format!("cannot read {}", path.display())).because(cause)
    }

    pub(crate) fn certificate(path: &Path, cause: reqwest::Error) -> Self {
        let path = path.display();
        Self::new(format!("{path} has no certificate or key that is of use")).because(cause)
    }

    pub(crate) fn tls(cause: reqwest::Error) -> Self {
        Self::new("the certificates of a cloud cannot be used").because(cause)
    }
}
