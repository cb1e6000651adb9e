//! The services of a cloud, and their names in catalogs and in clouds.yaml.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    Identity,
    Compute,
    Network,
    Image,
    Volume,
}

impl Service {
    pub const ALL: &[Self] = &[
        Self::Identity,
        Self::Compute,
        Self::Network,
        Self::Image,
        Self::Volume,
    ];

    /// Returns its types in catalogs, the preferred one first.
    pub fn types(self) -> &'static [&'static str] {
        match self {
            Self::Identity => &["identity"],
            Self::Compute => &["compute"],
            Self::Network => &["network"],
            Self::Image => &["image"],
            Self::Volume => &["block-storage", "volumev3", "block-store", "volume"],
        }
    }

    /// Returns the version of its API, as in URLs.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Identity | Self::Volume => "v3",
            Self::Compute => "v2.1",
            Self::Network => "v2.0",
            Self::Image => "v2",
        }
    }

    /// Returns the headers that select a microversion. Nova's 2.3 shows which volumes are deleted with their server; every
    /// Nova since 2015 has it.
    pub(crate) fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Compute => &[("x-openstack-nova-api-version", "2.3")],
            _ => &[],
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Identity => "identity",
            Self::Compute => "compute",
            Self::Network => "network",
            Self::Image => "image",
            Self::Volume => "volume",
        })
    }
}
