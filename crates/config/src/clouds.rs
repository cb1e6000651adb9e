//! What clouds.yaml, its companions and the environment say of a cloud, as openstacksdk reads them.
//!
//! `files` finds and reads, `merge` puts together what several places say. What the keys mean is the business of whoever
//! logs in to the cloud, all but one: the format in which a cloud takes images, on which depends what builders build.
//!
//! openstacksdk is the authority; a test of the client asks it. What differs on purpose: a file that cannot be understood
//! is an error here and not skipped, and the profiles of providers are those of clouds-public.yaml only, for the ones that
//! openstacksdk carries in itself age with it.

mod files;
mod merge;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use files::Surroundings;

use crate::values::Object;

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

/// All that is said of one region of one cloud.
#[derive(Clone)]
pub struct Cloud {
    pub name: String,
    /// With every key in its newest spelling, and what openstacksdk takes for granted.
    pub values: Object,
    /// Whether machines are reached over IPv4 only, if the cloud itself does not say.
    pub force_ipv4: bool,
    /// Where paths that begin with `~/` lead.
    pub home: Option<PathBuf>,
}

impl Clouds {
    /// Reads the files that openstacksdk would read.
    pub fn find(around: &Surroundings) -> Result<Self, CloudsError> {
        files::find(around)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.clouds.keys().map(String::as_str)
    }

    /// One cloud, one region. Without a name the one that the environment names, or the only one there is; without a
    /// region the first.
    pub fn cloud(&self, name: Option<&str>, region: Option<&str>) -> Result<Cloud, CloudsError> {
        let name = name.or(self.default.as_deref()).ok_or_else(|| {
            CloudsError::new(format!("no cloud is named; there are {}", self.known()))
        })?;
        Ok(Cloud {
            name: name.to_owned(),
            values: merge::merged(self, name, region)?,
            force_ipv4: self.force_ipv4(),
            home: self.home.clone(),
        })
    }

    fn force_ipv4(&self) -> bool {
        let said = |key: &str| self.client.get(key).map(truth);
        self.force_ipv4.unwrap_or_else(|| {
            said("prefer_ipv6") == Some(false)
                || said("force_ipv4")
                    .or(said("broken_ipv6"))
                    .unwrap_or_default()
        })
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

impl Cloud {
    /// What is said of a key; none if that is nothing.
    pub fn word(&self, key: &str) -> Option<String> {
        let text = text(self.values.get(key)?);
        (!text.is_empty()).then_some(text)
    }

    /// The format in which it takes images.
    pub fn image_format(&self) -> Option<String> {
        self.word("image_format")
    }
}

/// There are passwords in it.
impl std::fmt::Debug for Clouds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.clouds.keys()).finish()
    }
}

/// There are passwords in it.
impl std::fmt::Debug for Cloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cloud").field(&self.name).finish()
    }
}

/// Numbers are texts to Keystone.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Of texts, only `true` is.
pub fn truth(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

/// Why what was said of a cloud is of no use. Names the place, never a secret.
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
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn unreadable(path: &Path, cause: std::io::Error) -> Self {
        Self::new(format!("cannot read {}", path.display())).because(cause)
    }
}

#[cfg(test)]
mod tests;
