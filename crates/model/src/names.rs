//! Names of images, providers, pools, labels and tenants.
//!
//! Names of images and providers are path components in the store and are validated. The others may be any text, as in
//! Zuul and Nodepool.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::intern::intern;
use crate::json::json_string;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}: {reason}")]
pub struct InvalidName {
    /// The expected kind of value, such as `image name`.
    pub kind: &'static str,
    /// The text, truncated if it is long.
    pub text: String,
    pub reason: &'static str,
}

impl InvalidName {
    pub(crate) fn new(kind: &'static str, text: &str, reason: &'static str) -> Self {
        Self {
            kind,
            text: shorten(text),
            reason,
        }
    }
}

/// Truncates a text for error messages.
fn shorten(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

macro_rules! names {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        ///
        /// Cheap to clone.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        json_string!($name);
    )*};
}

/// Defines names that are path components.
macro_rules! path_newtypes {
    ($($(#[$meta:meta])* $name:ident, $kind:literal;)*) => {
        names! { $($(#[$meta])* $name;)* }
        $(
            impl $name {
                pub fn new(text: impl Into<Arc<str>>) -> Result<Self, InvalidName> {
                    let text = text.into();
                    match invalid_path_reason(&text) {
                        None => Ok(Self(text)),
                        Some(reason) => Err(InvalidName::new($kind, &text, reason)),
                    }
                }
            }

            impl FromStr for $name {
                type Err = InvalidName;

                fn from_str(text: &str) -> Result<Self, Self::Err> {
                    Self::new(intern(text))
                }
            }
        )*
    };
}

/// Defines names that may be any text.
macro_rules! text_newtypes {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        names! { $($(#[$meta])* $name;)* }
        $(
            impl $name {
                pub fn new(text: impl Into<Arc<str>>) -> Self {
                    Self(text.into())
                }
            }

            impl FromStr for $name {
                type Err = std::convert::Infallible;

                fn from_str(text: &str) -> Result<Self, Self::Err> {
                    Ok(Self::new(intern(text)))
                }
            }

            impl From<&str> for $name {
                fn from(text: &str) -> Self {
                    Self::new(text)
                }
            }
        )*
    };
}

path_newtypes! {
    /// The name of a disk image in the configuration.
    ImageName, "image name";
    /// The name of a provider: a cloud, cluster or set of machines.
    ProviderName, "provider name";
}

text_newtypes! {
    /// A label: a type of node.
    Label;
    /// The name of a pool: a part of a provider with its own limits and labels.
    PoolName;
    /// A tenant of Zuul.
    TenantName;
    /// Identifies a pool's worker in one run of a launcher. Used in `declined_by`, a node's `launcher` and a pool's
    /// `id`.
    LauncherId;
}

/// Returns why `text` is not a valid path component of ZooKeeper, if it is not.
fn invalid_path_reason(text: &str) -> Option<&'static str> {
    match text {
        "" => return Some("it must not be empty"),
        "." | ".." => return Some("it must not be . or .."),
        _ => {}
    }
    if text.contains('/') {
        return Some("it must not contain a slash");
    }
    text.chars()
        .any(|c| {
            matches!(c,
                '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        })
        .then_some("it must not contain control or private-use characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_path_components() {
        for bad in [
            "", ".", "..", "a/b", "/", "a\0", "a\n", "\u{7f}", "\u{e000}", "\u{fffe}",
        ] {
            let error = ImageName::new(bad).unwrap_err();
            assert_eq!((error.kind, error.text.as_str()), ("image name", bad));
            assert!(bad.parse::<ProviderName>().is_err());
        }
        for good in ["ubuntu-jammy", "a b", "...", "bücher", "lock"] {
            assert_eq!(ImageName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn long_names_are_truncated_in_errors() {
        let error = ImageName::new("/".repeat(100_000)).unwrap_err();
        assert!(error.to_string().len() < 400);
    }

    #[test]
    fn labels_may_be_any_text() {
        let json = serde_json::to_string(&Label::from("a/b \"ü\"")).unwrap();
        assert_eq!(
            serde_json::from_str::<Label>(&json).unwrap().as_str(),
            "a/b \"ü\""
        );
    }
}
