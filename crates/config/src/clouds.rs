//! Reads clouds.yaml, secure.yaml, clouds-public.yaml and the environment as openstacksdk does.
//!
//! `files` finds and reads them, `merge` combines them. Most keys are interpreted by the OpenStack client; only the
//! image format of a cloud is needed here, because it decides what builders build. A test compares the result with
//! openstacksdk. Two deliberate differences: an unreadable file is an error, and vendor profiles come from
//! clouds-public.yaml only, because those bundled with openstacksdk change with its version.

mod files;
mod merge;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use files::ProcessEnvironment;

use crate::values::Object;

/// All clouds that were found.
#[derive(Clone)]
pub struct CloudsYaml {
    /// The file that defines the clouds, if there is one.
    file: Option<PathBuf>,
    clouds: BTreeMap<String, Object>,
    /// The vendor profiles of clouds-public.yaml.
    profiles: BTreeMap<String, Object>,
    /// The section `client` of clouds.yaml.
    client: Object,
    /// The cloud to use if none is named.
    default: Option<String>,
    /// Whether machines are reached over IPv4 only, according to the environment.
    force_ipv4: Option<bool>,
    home: Option<PathBuf>,
}

/// The settings of one region of one cloud.
#[derive(Clone)]
pub struct CloudConfig {
    pub name: String,
    /// The settings with every key in its newest spelling, and with openstacksdk's defaults.
    pub values: Object,
    /// Whether machines are reached over IPv4 only, unless the cloud's own settings say otherwise.
    pub force_ipv4: bool,
    /// The directory that `~/` in paths refers to.
    pub home: Option<PathBuf>,
}

impl CloudsYaml {
    /// Reads the files that openstacksdk reads.
    pub fn find(around: &ProcessEnvironment) -> Result<Self, CloudsError> {
        files::find(around)
    }

    /// Returns the names of all clouds.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.clouds.keys().map(String::as_str)
    }

    /// Returns one region of one cloud. `name` defaults to the cloud that the environment names, or to the only one;
    /// `region` to the first.
    pub fn cloud(
        &self,
        name: Option<&str>,
        region: Option<&str>,
    ) -> Result<CloudConfig, CloudsError> {
        let name = name.or(self.default.as_deref()).ok_or_else(|| {
            CloudsError::new(format!(
                "no cloud is selected; known clouds: {}",
                self.known()
            ))
        })?;
        Ok(CloudConfig {
            name: name.to_owned(),
            values: merge::merged(self, name, region)?,
            force_ipv4: self.force_ipv4(),
            home: self.home.clone(),
        })
    }

    fn force_ipv4(&self) -> bool {
        let said = |key: &str| self.client.get(key).map(is_true);
        self.force_ipv4.unwrap_or_else(|| {
            said("prefer_ipv6") == Some(false)
                || said("force_ipv4")
                    .or(said("broken_ipv6"))
                    .unwrap_or_default()
        })
    }

    /// Returns the names of all clouds for error messages.
    fn known(&self) -> String {
        let names: Vec<_> = self.names().collect();
        match (&self.file, names.is_empty()) {
            (_, false) => names.join(", "),
            (Some(file), true) => format!("none in {}", file.display()),
            (None, true) => "none: clouds.yaml is neither here, nor in ~/.config/openstack, nor in /etc/openstack, and OS_CLIENT_CONFIG_FILE does not name one".to_owned(),
        }
    }
}

impl CloudConfig {
    /// Returns a setting as text; None if it is missing or empty.
    pub fn word(&self, key: &str) -> Option<String> {
        let text = text(self.values.get(key)?);
        (!text.is_empty()).then_some(text)
    }

    /// Returns the format in which the cloud accepts images.
    pub fn image_format(&self) -> Option<String> {
        self.word("image_format")
    }
}

/// Hides the settings, which contain passwords.
impl std::fmt::Debug for CloudsYaml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.clouds.keys()).finish()
    }
}

/// Hides the settings, which contain passwords.
impl std::fmt::Debug for CloudConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cloud").field(&self.name).finish()
    }
}

/// Returns a value as text; Keystone also treats numbers as text.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Returns whether a value is true. Of texts, only `true` is.
pub fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

/// An error in clouds.yaml or its companions. Names the file, never a secret.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct CloudsError {
    text: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl CloudsError {
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            source: None,
        }
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn unreadable(path: &Path, cause: std::io::Error) -> Self {
        Self::new(format!("failed to read {}", path.display())).with_source(cause)
    }
}

#[cfg(test)]
mod tests;
