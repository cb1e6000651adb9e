//! Dates and times in the file.

use std::rc::Rc;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::decode::{Decode, Decoder};
use crate::section::{Describe, TypeInfo};
use crate::values::type_info;
use crate::yaml::YamlNode;

/// A date, meaning midnight UTC, or a time with its offset from UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointInTime(pub Timestamp);

impl PointInTime {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(moment) = text.parse() {
            return Some(Self(moment));
        }
        // A time without an offset would be parsed as a date.
        let day: Date = text.parse().ok().filter(|_| text.len() == 10)?;
        let midnight = day.to_zoned(TimeZone::UTC).ok()?;
        Some(Self(midnight.timestamp()))
    }
}

impl Decode<()> for PointInTime {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let text = String::decode(node, &(), decoder)?;
        let moment = Self::parse(&text);
        if moment.is_none() {
            decoder.error(
                "bad-time",
                node.span,
                "expected a day such as `2027-01-31` or a moment such as `2027-01-31T18:00:00Z`",
            );
        }
        moment
    }
}

impl Describe for PointInTime {
    fn type_info() -> TypeInfo {
        let pattern = r"^\d{4}-\d{2}-\d{2}([Tt ].+)?$";
        type_info("time", json!({"type": "string", "pattern": pattern}))
    }
}

impl Serialize for PointInTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_parsed() {
        let read = |text| PointInTime::parse(text).map(|time| time.0.to_string());
        assert_eq!(read("2027-01-31").unwrap(), "2027-01-31T00:00:00Z");
        assert_eq!(
            read("2027-01-31T18:00:00+02:00").unwrap(),
            "2027-01-31T16:00:00Z"
        );
        for bad in ["", "tomorrow", "2027-02-30", "2027-01-31T18:00:00", "5"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
