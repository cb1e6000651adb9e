//! The record of a scope, below [`SCOPES`](nodeyard_model::layout::SCOPES).
//!
//! A scope owns leases. One that was opened explicitly expires, and ends its leases; one that was created by a lease exists
//! as long as it has leases. The first nodes of its leases pin it to their provider.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nodeyard_model::{ProviderName, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Error;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaseScope {
    pub name: ScopeName,
    pub tenant: Option<TenantName>,
    /// The name of the lessee that opened it.
    pub owner: Box<str>,
    pub created: Timestamp,
    /// When it ends unless it is renewed; none if it exists as long as its leases.
    pub expires: Option<Timestamp>,
    /// How long it lasts after a renewal, in seconds.
    pub duration: Option<u64>,
    /// The provider of its first nodes.
    #[serde(default)]
    pub provider: Option<ProviderName>,
    /// It accepts no leases; those it has end, and it is deleted after them.
    #[serde(default)]
    pub closing: bool,
}

/// The name of a scope, unique within its tenant: letters, digits and `.`, `_`, `-`, `:`, `@`, `+`, at most 128.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScopeName(Arc<str>);

impl ScopeName {
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Error> {
        let text = text.into();
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-:@+".contains(&b);
        let valid = (1..=128).contains(&text.len()) && text.bytes().all(allowed);
        // Not allowed as a segment of a URL.
        if valid && &*text != "." && &*text != ".." {
            return Ok(Self(text));
        }
        Err(Error::Invalid {
            what: "name of a scope",
            why: "it must be 1 to 128 letters, digits or . _ - : @ +".to_owned(),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for ScopeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<String> for ScopeName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl From<ScopeName> for String {
    fn from(name: ScopeName) -> Self {
        name.0.as_ref().to_owned()
    }
}
