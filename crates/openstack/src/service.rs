//! The services of a cloud, and what they are called in catalogs and in clouds.yaml.

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

    /// The types that catalogs have for it, the one to prefer first.
    pub fn types(self) -> &'static [&'static str] {
        match self {
            Self::Identity => &["identity"],
            Self::Compute => &["compute"],
            Self::Network => &["network"],
            Self::Image => &["image"],
            Self::Volume => &["block-storage", "volumev3", "block-store", "volume"],
        }
    }

    /// The version of the API that is spoken here, as addresses have it.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Identity | Self::Volume => "v3",
            Self::Compute => "v2.1",
            Self::Network => "v2.0",
            Self::Image => "v2",
        }
    }

    /// Headers that choose among the versions of a service. Nova's 2.3 tells which volumes go with their server; every
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
