//! Sizes of files and disks.

use std::fmt;
use std::rc::Rc;

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::decode::{Decode, Decoder};
use crate::section::{Describe, TypeInfo};
use crate::values::type_info;
use crate::yaml::YamlNode;

const UNITS: [(&str, u64); 5] = [
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("", 1),
];

/// A number of bytes, optionally with a unit: `20G` is 20 times 2^30.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

impl Size {
    pub(crate) const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text.get(digits.len()..)?.to_ascii_uppercase();
        let unit = unit
            .strip_suffix("IB")
            .filter(|unit| !unit.is_empty())
            .unwrap_or(&unit);
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        let count: u64 = digits.trim_end().parse().ok()?;
        count.checked_mul(factor).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = whole.unwrap_or(("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Decode<()> for Size {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let scalar = decoder.scalar(node, "a size")?;
        let size = Self::parse(&scalar.text);
        if size.is_none() {
            let message = "a size is a whole number of bytes, or one with K, M, G or T behind it";
            decoder.error("bad-size", node.span, message);
        }
        size
    }
}

impl Describe for Size {
    fn type_info() -> TypeInfo {
        let schema = json!({
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^[0-9]+ ?([KMGTkmgt]([Ii][Bb])?)?$",
        });
        type_info("size", schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_formatted() {
        for (text, bytes, again) in [
            ("0", 0, "0"),
            ("1000", 1000, "1000"),
            ("2048", 2048, "2K"),
            ("20G", 20 << 30, "20G"),
            ("20 GiB", 20 << 30, "20G"),
            ("1536m", 1536 << 20, "1536M"),
        ] {
            let size = Size::parse(text).unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, again));
        }
        for bad in ["", "G", "-1", "1.5G", "1X", "1GB", "1iB", "99999999999T"] {
            assert_eq!(Size::parse(bad), None, "{bad:?}");
        }
    }
}
