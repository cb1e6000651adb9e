//! Formats of image files and the QEMU drivers that read and write them.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The maximum length of a format name.
const MAX_LEN: usize = 16;

/// Extensions with another meaning in the repository.
const RESERVED: [&str; 4] = ["d", "md5", "sha256", "tmp"];

/// Names of disk formats and their QEMU drivers, best conversion source first: uncompressed before compressed ones.
const DISK_FORMATS: [(&str, &str); 6] = [
    ("raw", "raw"),
    ("qcow2", "qcow2"),
    ("vhdx", "vhdx"),
    ("vhd", "vpc"),
    ("vdi", "vdi"),
    ("vmdk", "vmdk"),
];

/// The format and file name extension of an image file: `qcow2`, `raw`, `tgz`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Format(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid image format {text:?}: use up to 16 letters, digits and underscores, and none of d, md5, sha256, tmp"
)]
pub struct InvalidFormat {
    text: String,
}

impl Format {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the QEMU driver, if this is a disk format that `qemu-img` can read and write.
    pub fn qemu_driver(&self) -> Option<&'static str> {
        self.disk_format().map(|(_, driver)| driver)
    }

    /// Returns all formats that can be converted.
    pub fn convertible() -> impl Iterator<Item = &'static str> {
        DISK_FORMATS.iter().map(|(format, _)| *format)
    }

    /// Returns the format in `present` that is cheapest to convert from.
    pub(crate) fn best_source<'a>(present: impl Iterator<Item = &'a Self>) -> Option<&'a Self> {
        present
            .filter_map(|format| {
                let rank = DISK_FORMATS
                    .iter()
                    .position(|(name, _)| *name == &*format.0)?;
                Some((rank, format))
            })
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, format)| format)
    }

    fn disk_format(&self) -> Option<(&'static str, &'static str)> {
        DISK_FORMATS.into_iter().find(|(name, _)| *name == &*self.0)
    }
}

impl FromStr for Format {
    type Err = InvalidFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = (1..=MAX_LEN).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !RESERVED.contains(&text);
        if good {
            Ok(Self(text.into()))
        } else {
            let text = text.chars().take(2 * MAX_LEN).collect();
            Err(InvalidFormat { text })
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Format {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(text: &str) -> Format {
        text.parse().unwrap()
    }

    #[test]
    fn formats_are_valid_extensions() {
        for bad in [
            "", ".", "a.b", "a/b", "md5", "sha256", "d", "tmp", "a-new", "q c", "ä",
        ] {
            assert!(bad.parse::<Format>().is_err(), "{bad:?}");
        }
        for good in ["raw", "qcow2", "tgz", "x_1"] {
            assert_eq!(format(good).to_string(), good);
        }
    }

    #[test]
    fn archives_are_not_convertible() {
        let present = ["tgz", "vmdk", "qcow2"].map(format);
        assert_eq!(Format::best_source(present.iter()), Some(&format("qcow2")));
        assert_eq!(Format::best_source([format("tar")].iter()), None);
        assert_eq!(format("vhd").qemu_driver(), Some("vpc"));
        assert_eq!(format("tar").qemu_driver(), None);
    }
}
