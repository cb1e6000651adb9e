//! Image ids.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use nodeyard_model::BuildId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The maximum length of an image id.
const MAX_ID_LEN: usize = 128;

/// The id of a built image: the build id if the steward requested it, otherwise any name that is safe in a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid image id {text:?}: use up to 128 letters, digits, dots, dashes and underscores, a letter or \
     digit first and no two dots in a row"
)]
pub struct InvalidImageId {
    text: String,
}

impl ImageId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the build id, if this is one.
    pub fn build(&self) -> Option<BuildId> {
        self.0.parse().ok()
    }
}

impl FromStr for ImageId {
    type Err = InvalidImageId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = text.len() <= MAX_ID_LEN
            && text
                .as_bytes()
                .first()
                .is_some_and(u8::is_ascii_alphanumeric)
            && text.bytes().all(safe)
            && !text.contains("..");
        if good {
            Ok(Self(text.into()))
        } else {
            let text = text.chars().take(MAX_ID_LEN).collect();
            Err(InvalidImageId { text })
        }
    }
}

impl From<BuildId> for ImageId {
    fn from(build: BuildId) -> Self {
        Self(build.to_string().into())
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ImageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_in_paths() {
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a..b",
            "-a",
            ".a",
            "a b",
            "ä",
            &"a".repeat(129),
        ] {
            assert!(bad.parse::<ImageId>().is_err(), "{bad:?}");
        }
        for good in ["a", "42", "A.b_c-d", &"a".repeat(128)] {
            assert!(good.parse::<ImageId>().is_ok(), "{good:?}");
        }
    }
}
