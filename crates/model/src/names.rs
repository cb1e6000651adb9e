//! Names that people choose: images, providers, pools, labels, tenants.
//!
//! An image or a provider is a part of a path in the store, so a name that could leave its place there is
//! refused when it is made. The other names are only ever values; Zuul and Nodepool allow any text in
//! them, and refusing some would make a whole record unreadable.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::json::text_form;
use crate::text::shared;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}: {reason}")]
pub struct InvalidName {
    /// What the text was to be, such as `image name`.
    pub kind: &'static str,
    /// The text, shortened if it is long.
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

/// Enough of `text` to recognise it in an error.
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
        /// Cloning is cheap.
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

        text_form!($name);
    )*};
}

/// Names that are a part of a path.
macro_rules! path_names {
    ($($(#[$meta:meta])* $name:ident, $kind:literal;)*) => {
        names! { $($(#[$meta])* $name;)* }
        $(
            impl $name {
                pub fn new(text: impl Into<Arc<str>>) -> Result<Self, InvalidName> {
                    let text = text.into();
                    match path_flaw(&text) {
                        None => Ok(Self(text)),
                        Some(reason) => Err(InvalidName::new($kind, &text, reason)),
                    }
                }
            }

            impl FromStr for $name {
                type Err = InvalidName;

                fn from_str(text: &str) -> Result<Self, Self::Err> {
                    Self::new(shared(text))
                }
            }
        )*
    };
}

/// Names that may be any text.
macro_rules! free_names {
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
                    Ok(Self::new(shared(text)))
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

path_names! {
    /// A disk image, as named in the configuration.
    ImageName, "image name";
    /// A provider: one cloud, cluster or set of machines.
    ProviderName, "provider name";
}

free_names! {
    /// What a request asks for: a kind of node.
    Label;
    /// A part of a provider with limits and labels of its own.
    PoolName;
    /// A tenant of Zuul.
    TenantName;
    /// One run of one pool's worker; what `declined_by`, a node's `launcher` and a pool component's `id` hold.
    LauncherId;
}

/// Why `text` cannot be one part of a path. The characters are those that ZooKeeper refuses.
fn path_flaw(text: &str) -> Option<&'static str> {
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
    fn a_name_that_would_leave_its_place_in_a_path_is_refused() {
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
    fn an_error_does_not_repeat_a_huge_name() {
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
