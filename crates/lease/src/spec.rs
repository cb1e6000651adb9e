//! What a lessee asks for.

use std::time::Duration;

use nodeyard_model::{Label, ProviderName, TenantName};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::scope::ScopeName;

/// The largest number of nodes: their records are written in one transaction, which must fit into a packet of ZooKeeper.
pub const MAX_LABELS: usize = 100;
/// The longest label, tenant, idempotency key or name, in characters.
pub const MAX_TEXT: usize = 255;
/// The longest duration of a lease before it must be renewed.
pub const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// The caller, which can only see and change leases of its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lessee {
    /// Shown in logs, requests and nodes.
    pub name: Box<str>,
    /// None for access to all tenants.
    pub tenant: Option<TenantName>,
}

impl Lessee {
    pub(crate) fn may_see(&self, tenant: Option<&TenantName>) -> bool {
        self.tenant.is_none() || self.tenant.as_ref() == tenant
    }

    /// Returns the tenant of a new lease or scope.
    pub(crate) fn resolve_tenant(
        &self,
        asked: Option<&TenantName>,
    ) -> Result<Option<TenantName>, Error> {
        match (&self.tenant, asked) {
            (Some(own), Some(asked)) if own != asked => Err(Error::OtherTenant {
                tenant: asked.clone(),
            }),
            (own, asked) => Ok(own.as_ref().or(asked).cloned()),
        }
    }
}

/// What a lease is created from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LeaseSpec {
    /// The labels of the nodes.
    pub labels: Vec<Label>,
    /// How long the lease lasts without a renewal, in seconds, while it waits and again when it has its nodes.
    pub duration: u64,
    /// For callers without a tenant.
    #[serde(default)]
    pub tenant: Option<TenantName>,
    /// The only provider that is allowed.
    #[serde(default)]
    pub provider: Option<ProviderName>,
    #[serde(default)]
    pub priority: LeasePriority,
    /// Lower is served first, among requests of one priority.
    #[serde(default)]
    pub relative_priority: i64,
    /// The scope that owns the lease; created if it does not exist.
    #[serde(default)]
    pub scope: Option<ScopeName>,
    /// Whether other providers than that of the scope are allowed.
    #[serde(default)]
    pub affinity: ScopeAffinity,
}

/// The priority of the node request, as of Zuul's pipelines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasePriority {
    High,
    #[default]
    Normal,
    Low,
}

impl LeasePriority {
    pub(crate) fn precedence(self) -> u16 {
        match self {
            Self::High => 100,
            Self::Normal => 200,
            Self::Low => 300,
        }
    }
}

/// What happens if the provider of the scope declines the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScopeAffinity {
    /// Another provider may serve it.
    #[default]
    Prefer,
    /// The lease fails.
    Strict,
}

impl LeaseSpec {
    pub fn new(labels: Vec<Label>, duration: Duration) -> Self {
        Self {
            labels,
            duration: duration.as_secs(),
            tenant: None,
            provider: None,
            priority: LeasePriority::default(),
            relative_priority: 0,
            scope: None,
            affinity: ScopeAffinity::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let count = self.labels.len();
        if count == 0 || count > MAX_LABELS {
            return Err(Error::Invalid {
                what: "list of labels",
                why: format!("it has {count} entries; 1 to {MAX_LABELS} are possible"),
            });
        }
        for label in &self.labels {
            check_text("label", label.as_str())?;
        }
        if let Some(tenant) = &self.tenant {
            check_text("tenant", tenant.as_str())?;
        }
        check_duration(self.duration)
    }
}

pub(crate) fn check_text(what: &'static str, text: &str) -> Result<(), Error> {
    let length = text.chars().count();
    let why = if text.is_empty() {
        "it is empty".to_owned()
    } else if length > MAX_TEXT {
        format!("it has {length} characters; {MAX_TEXT} are possible")
    } else if text.chars().any(char::is_control) {
        "it has control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what, why })
}

pub(crate) fn check_duration(seconds: u64) -> Result<(), Error> {
    let most = MAX_DURATION.as_secs();
    if (1..=most).contains(&seconds) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "duration",
        why: format!("it is {seconds} seconds; 1 to {most} are possible"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_long_as_they_have_characters() {
        for (text, fits) in [
            ("ü".repeat(200), true),
            ("ü".repeat(MAX_TEXT), true),
            ("ü".repeat(MAX_TEXT + 1), false),
            ("x".repeat(MAX_TEXT + 1), false),
        ] {
            assert_eq!(check_text("label", &text).is_ok(), fits, "{text}");
        }
    }
}
