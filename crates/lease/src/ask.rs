//! What somebody asks for, and who asks.

use std::time::Duration;

use nodeyard_model::{Label, ProviderName, TenantName};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::scope::ScopeName;

/// All nodes of a request change hands in one write, which must fit into one packet of the store.
pub const MAX_LABELS: usize = 100;
/// In characters: the longest text of a label, a tenant, an idempotency key or the name of a requestor.
pub const MAX_TEXT: usize = 255;
/// The longest lease. Whoever needs more renews it.
pub const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Who asks: each call is confined to what this caller may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// For logs, and for whoever looks at a request or a node.
    pub name: Box<str>,
    /// Leases of other tenants do not exist for the caller; without a tenant it may touch all.
    pub tenant: Option<TenantName>,
}

impl Caller {
    pub(crate) fn sees(&self, tenant: Option<&TenantName>) -> bool {
        self.tenant.is_none() || self.tenant.as_ref() == tenant
    }

    /// The tenant that something new belongs to.
    pub(crate) fn tenant_of(
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

/// A request for nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ask {
    /// What the nodes must be, one for each, in this order.
    pub labels: Vec<Label>,
    /// How long the nodes are kept without a renewal, in seconds. A request that waits is kept as long.
    pub duration: u64,
    /// For callers without a tenant of their own.
    #[serde(default)]
    pub tenant: Option<TenantName>,
    /// Only this provider will do; a request that is served by another one fails.
    #[serde(default)]
    pub provider: Option<ProviderName>,
    #[serde(default)]
    pub priority: Priority,
    /// Lower is sooner, among requests of one priority.
    #[serde(default)]
    pub relative_priority: i64,
    /// The scope that owns it; made if there is none.
    #[serde(default)]
    pub scope: Option<ScopeName>,
    /// Whether the provider of the scope's first nodes is a must.
    #[serde(default)]
    pub affinity: Affinity,
}

/// Which requests are served first. The same three that Zuul's pipelines have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    pub(crate) fn precedence(self) -> u16 {
        match self {
            Self::High => 100,
            Self::Normal => 200,
            Self::Low => 300,
        }
    }
}

/// What to do where the provider of a scope's first nodes cannot serve a later request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// Any other provider will do.
    #[default]
    Prefer,
    /// The request fails.
    Strict,
}

impl Ask {
    pub fn new(labels: Vec<Label>, duration: Duration) -> Self {
        Self {
            labels,
            duration: duration.as_secs(),
            tenant: None,
            provider: None,
            priority: Priority::default(),
            relative_priority: 0,
            scope: None,
            affinity: Affinity::default(),
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
