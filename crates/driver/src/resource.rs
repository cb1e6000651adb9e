//! What exists in a cloud.

use std::borrow::Cow;
use std::fmt;

use nodeyard_model::Resources;
use serde::{Deserialize, Serialize};

use crate::ids::ExternalId;
use crate::tags::Tags;

/// The kinds of things a driver makes, named by their plural: what the metric of leaks is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResourceKind(Cow<'static, str>);

impl ResourceKind {
    /// Machines, pods: what a node is. Every other kind only belongs to one.
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

/// One thing in a cloud, ours or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceKind,
    pub id: ExternalId,
    pub name: Option<Box<str>>,
    pub tags: Tags,
    /// What it takes of the provider's limits. Zero for what is counted with something else.
    pub takes: Resources,
}
