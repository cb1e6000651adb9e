//! Ids of leases and scopes: 32 hexadecimal digits, random or derived.
//!
//! An id that must be unique for a key or a name is derived from it: so the store refuses a second record, and no index is
//! needed.

use std::fmt;
use std::str::FromStr;

use nodeyard_model::TenantName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::error::Error;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident, $kind:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                let valid = text.len() == 32 && text.bytes().all(digits);
                let number = valid.then(|| u128::from_str_radix(text, 16).ok()).flatten();
                number.map(Self).ok_or_else(|| Error::Invalid {
                    what: $kind,
                    why: "it must be 32 hexadecimal digits in lower case".to_owned(),
                })
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    )*};
}

ids! {
    /// A lease. Derived from tenant and idempotency key, if there is a key.
    LeaseId, "lease id";
    /// A scope. Derived from tenant and name.
    ScopeId, "scope id";
}

impl LeaseId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4().as_u128())
    }

    pub(crate) fn of_key(tenant: Option<&TenantName>, key: &str) -> Self {
        Self(digest("lease", tenant, key))
    }
}

impl ScopeId {
    pub(crate) fn of_name(tenant: Option<&TenantName>, name: &str) -> Self {
        Self(digest("scope", tenant, name))
    }
}

/// Returns a digest of the texts with their lengths, so that no two tuples have the same one.
fn digest(kind: &str, tenant: Option<&TenantName>, name: &str) -> u128 {
    let mut hasher = Sha256::new();
    let tenant = tenant.map(TenantName::as_str);
    for part in [Some(kind), tenant, Some(name)] {
        match part {
            Some(text) => {
                hasher.update((text.len() as u64 + 1).to_be_bytes());
                hasher.update(text);
            }
            None => hasher.update(0_u64.to_be_bytes()),
        }
    }
    let mut half = [0; 16];
    for (to, from) in half.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    u128::from_be_bytes(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_lease_of_one_tenant() {
        let [a, b] = ["a", "ab"].map(TenantName::from);
        let of = |tenant, key| LeaseId::of_key(tenant, key);
        assert_eq!(of(Some(&a), "k"), of(Some(&a), "k"));
        let different = [
            of(None, "k"),
            of(Some(&a), "k"),
            of(Some(&b), "k"),
            of(Some(&a), "bk"),
            of(Some(&TenantName::from("")), "k"),
        ];
        for (index, id) in different.iter().enumerate() {
            assert!(!different[..index].contains(id), "{index}");
        }
    }

    #[test]
    fn ids_read_back_and_nothing_else_does() {
        let id = LeaseId::random();
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        for text in [
            "",
            "1",
            "+0000000000000000000000000000001",
            &"G".repeat(32),
            &"A".repeat(32),
        ] {
            assert!(text.parse::<LeaseId>().is_err(), "{text}");
        }
    }
}
