//! Resources that exist in a cloud.

use std::borrow::Cow;
use std::fmt;

use nodeyard_model::Resources;
use serde::{Deserialize, Serialize};

use crate::ids::ExternalId;
use crate::tags::Tags;

/// A kind of resource, named by its plural, which is also the name of its metric of leaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResourceKind(Cow<'static, str>);

impl ResourceKind {
    /// Machines and pods, which are nodes. Resources of all other kinds belong to one.
    pub const INSTANCES: Self = Self(Cow::Borrowed("instances"));
    pub const IMAGES: Self = Self(Cow::Borrowed("images"));
    pub const VOLUMES: Self = Self(Cow::Borrowed("volumes"));
    pub const FLOATING_IPS: Self = Self(Cow::Borrowed("floatingips"));
    pub const PORTS: Self = Self(Cow::Borrowed("ports"));

    pub const fn new(plural: &'static str) -> Self {
        Self(Cow::Borrowed(plural))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One resource, of any owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceKind,
    pub id: ExternalId,
    pub name: Option<Box<str>>,
    pub tags: Tags,
    /// How much of the provider's limits it uses. Zero if it is counted with another resource.
    pub takes: Resources,
}
