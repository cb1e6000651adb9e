//! Ids of requests, nodes, image builds and uploads.
//!
//! Their texts have a fixed width, so they are stored as numbers and compare like their texts.

use std::fmt;
use std::str::FromStr;

use crate::json::json_string;
use crate::names::InvalidName;

/// The number of digits of ZooKeeper's sequence numbers.
const SEQUENCE_DIGITS: usize = 10;

/// Parses a number of exactly `width` decimal digits.
fn parse_digits(text: &str, width: usize) -> Option<u64> {
    (text.len() == width && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

macro_rules! sequence_ids {
    ($($(#[$meta:meta])* $name:ident, $kind:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            pub fn sequence(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:010}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_digits(text, SEQUENCE_DIGITS)
                    .map(Self)
                    .ok_or_else(|| InvalidName::new($kind, text, "it must be ten digits"))
            }
        }
    )*};
}

sequence_ids! {
    /// The id of a node: `0000000042`.
    NodeId, "node id";
    /// The id of an upload, unique per build and provider: `0000000001`.
    UploadId, "upload id";
}

/// The id of a node request, its precedence and sequence number: `200-0000000042`.
///
/// Zuul distinguishes Nodepool requests from its own by the hyphen. Compares like the text; for the order of service
/// see [`RequestOrder`](crate::request::RequestOrder).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    precedence: u16,
    sequence: u64,
}

impl RequestId {
    /// Returns the precedence, from 0 to 999; lower is served first.
    pub fn precedence(self) -> u16 {
        self.precedence
    }

    pub fn sequence(self) -> u64 {
        self.sequence
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03}-{:010}", self.precedence, self.sequence)
    }
}

impl FromStr for RequestId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('-')
            .and_then(|(precedence, sequence)| {
                Some(Self {
                    precedence: u16::try_from(parse_digits(precedence, 3)?).ok()?,
                    sequence: parse_digits(sequence, SEQUENCE_DIGITS)?,
                })
            })
            .ok_or_else(|| {
                let reason = "it must be three digits, a hyphen and ten digits";
                InvalidName::new("request id", text, reason)
            })
    }
}

/// The id of an image build: a UUID as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(u128);

impl BuildId {
    pub const fn from_u128(uuid: u128) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for BuildId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hexadecimal =
            text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        hexadecimal
            .then(|| u128::from_str_radix(text, 16).ok().map(Self))
            .flatten()
            .ok_or_else(|| {
                let reason = "it must be 32 lower-case hexadecimal digits";
                InvalidName::new("build id", text, reason)
            })
    }
}

macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_display!(NodeId, UploadId, RequestId, BuildId);
json_string!(NodeId, UploadId, RequestId, BuildId);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_round_trip() {
        for text in ["0000000000", "0000000042", "9999999999"] {
            assert_eq!(text.parse::<NodeId>().unwrap().to_string(), text);
            assert_eq!(text.parse::<UploadId>().unwrap().to_string(), text);
        }
        let build = "0123456789abcdef0000000000000001";
        assert_eq!(build.parse::<BuildId>().unwrap().to_string(), build);
        let request: RequestId = "099-0000001234".parse().unwrap();
        assert_eq!(request.to_string(), "099-0000001234");
        assert_eq!((request.precedence(), request.sequence()), (99, 1234));
    }

    #[test]
    fn invalid_ids_are_rejected() {
        for bad in [
            "",
            "1",
            "00000000001",
            "+000000001",
            "-000000001",
            "000000000a",
            "٠٠٠٠٠",
        ] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
        }
        for bad in [
            "",
            "200",
            "200-",
            "200-1",
            "20-0000000001",
            "2000-0000000001",
            "+20-0000000001",
            "200--000000001",
            "200-0000000001-",
            "200_0000000001",
            "200-0000000001\n",
        ] {
            assert!(bad.parse::<RequestId>().is_err(), "{bad}");
        }
        for bad in [
            "",
            "0000000001",
            "0123456789ABCDEF0000000000000001",
            "01234567-89ab-cdef-0000-000000000001",
            "+123456789abcdef0000000000000001",
        ] {
            assert!(bad.parse::<BuildId>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn ids_compare_like_their_texts(
            a in "[0-9]{3}-[0-9]{10}",
            b in "[0-9]{3}-[0-9]{10}",
        ) {
            let (x, y): (RequestId, RequestId) = (a.parse().unwrap(), b.parse().unwrap());
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }
    }
}
