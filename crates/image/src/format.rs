//! Formats of image files: what they are called, and which of them `qemu-img` can read and write.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest format.
const LONGEST: usize = 16;

/// Extensions that mean something else in the repository.
const TAKEN: [&str; 4] = ["d", "md5", "sha256", "tmp"];

/// Disk formats as this program calls them and as QEMU does, the best source of a conversion first: those that are
/// read without decompression before the others.
const DISKS: [(&str, &str); 6] = [
    ("raw", "raw"),
    ("qcow2", "qcow2"),
    ("vhdx", "vhdx"),
    ("vhd", "vpc"),
    ("vdi", "vdi"),
    ("vmdk", "vmdk"),
];

/// The format of an image file, which is also the extension of its name: `qcow2`, `raw`, `tgz`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Format(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot be an image format: use up to 16 letters, digits and underscores, and none of d, md5, sha256, tmp"
)]
pub struct BadFormat {
    text: String,
}

impl Format {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What QEMU calls it, if it is a disk that `qemu-img` can read and write.
    pub fn qemu_driver(&self) -> Option<&'static str> {
        self.disk().map(|(_, driver)| driver)
    }

    /// All formats between which files can be converted.
    pub fn convertible() -> impl Iterator<Item = &'static str> {
        DISKS.iter().map(|(format, _)| *format)
    }

    /// The one of `present` from which a conversion is cheapest.
    pub(crate) fn best_source<'a>(present: impl Iterator<Item = &'a Self>) -> Option<&'a Self> {
        present
            .filter_map(|format| {
                let rank = DISKS.iter().position(|(name, _)| *name == &*format.0)?;
                Some((rank, format))
            })
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, format)| format)
    }

    fn disk(&self) -> Option<(&'static str, &'static str)> {
        DISKS.into_iter().find(|(name, _)| *name == &*self.0)
    }
}

impl FromStr for Format {
    type Err = BadFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = (1..=LONGEST).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !TAKEN.contains(&text);
        if good {
            Ok(Self(text.into()))
        } else {
            let text = text.chars().take(2 * LONGEST).collect();
            Err(BadFormat { text })
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
    fn a_format_is_an_extension_and_nothing_else() {
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
    fn archives_are_no_source_of_a_disk() {
        let present = ["tgz", "vmdk", "qcow2"].map(format);
        assert_eq!(Format::best_source(present.iter()), Some(&format("qcow2")));
        assert_eq!(Format::best_source([format("tar")].iter()), None);
        assert_eq!(format("vhd").qemu_driver(), Some("vpc"));
        assert_eq!(format("tar").qemu_driver(), None);
    }
}
