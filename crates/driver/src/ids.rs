//! The ids that clouds assign, and the id of an installation.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use nodeyard_model::Opaque;
use serde::{Deserialize, Serialize};

/// The id that a cloud assigned to a resource: a text, in some clouds an object.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExternalId(Opaque);

impl ExternalId {
    /// Returns None for null, which a record contains until the id is known.
    pub fn from_record(value: &Opaque) -> Option<Self> {
        (!value.is_null()).then(|| Self(value.clone()))
    }

    pub fn to_record(&self) -> Opaque {
        self.0.clone()
    }

    /// Returns None if the id is an object.
    pub fn as_text(&self) -> Option<String> {
        self.0.as_string()
    }
}

impl From<&str> for ExternalId {
    fn from(text: &str) -> Self {
        Self(Opaque::string(text))
    }
}

impl fmt::Display for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_text() {
            Some(text) => f.pad(&text),
            None => f.pad(self.0.text()),
        }
    }
}

impl fmt::Debug for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.text())
    }
}

impl PartialEq for ExternalId {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ExternalId {}

impl PartialOrd for ExternalId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExternalId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.text().cmp(other.0.text())
    }
}

impl Hash for ExternalId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.text().hash(hasher);
    }
}

/// The id of an installation of Nodeyard. Created once, and kept in the store.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct SystemId(Arc<str>);

impl SystemId {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SystemId {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<SystemId> for String {
    fn from(id: SystemId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
