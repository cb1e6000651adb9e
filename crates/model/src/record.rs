//! The [`Record`] trait and the macro that defines records.

use std::str::Utf8Error;

use serde_json::value::RawValue;

use crate::json::{self, DecodeError, JsonField, ObjectKeys, ObjectWriter, Opaque};

/// The maximum size of a record: four times ZooKeeper's default limit.
const MAX_RECORD_BYTES: usize = 4 << 20;

/// A record of the store: a JSON object shared with Zuul and Python Nodepool.
pub trait Record: Sized {
    /// The name of the record type in messages.
    const KIND: &'static str;

    fn from_json(data: &[u8]) -> Result<Self, RecordError>;

    /// Serializes all keys and the preserved unknown keys, sorted.
    fn to_json(&self) -> Vec<u8>;
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not an error in the data: the record is being created, or its lock was taken after its deletion.
    #[error(
        "the {record} record is empty: it is being created, or was deleted while its lock was being taken"
    )]
    Empty { record: &'static str },
    #[error("the {record} record has {size} bytes; the maximum is {MAX_RECORD_BYTES}")]
    TooLarge { record: &'static str, size: usize },
    #[error("the {record} record is not UTF-8 text")]
    NotUtf8 {
        record: &'static str,
        source: Utf8Error,
    },
    #[error("the {record} record is nested deeper than {} levels", json::MAX_DEPTH)]
    TooDeep { record: &'static str },
    #[error("the {record} record is not valid JSON")]
    Syntax {
        record: &'static str,
        source: serde_json::Error,
    },
    #[error("invalid {record} record: {error}")]
    Content {
        record: &'static str,
        error: DecodeError,
    },
}

pub(crate) fn from_json<T: JsonField>(record: &'static str, data: &[u8]) -> Result<T, RecordError> {
    if data.is_empty() {
        return Err(RecordError::Empty { record });
    }
    if data.len() > MAX_RECORD_BYTES {
        let size = data.len();
        return Err(RecordError::TooLarge { record, size });
    }
    let text =
        std::str::from_utf8(data).map_err(|source| RecordError::NotUtf8 { record, source })?;
    if json::exceeds_depth(text, json::MAX_DEPTH) {
        return Err(RecordError::TooDeep { record });
    }
    let value: &RawValue =
        serde_json::from_str(text).map_err(|source| RecordError::Syntax { record, source })?;
    T::read(value).map_err(|error| RecordError::Content { record, error })
}

/// Unknown keys, which are preserved for other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownKeys(Box<[(Box<str>, Opaque)]>);

impl UnknownKeys {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Opaque)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    pub fn get(&self, key: &str) -> Option<&Opaque> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    pub(crate) fn from_remaining(
        keys: ObjectKeys<'_>,
        dropped: fn(&str) -> bool,
    ) -> Result<Self, DecodeError> {
        let all = keys.remaining(|key, value| {
            if dropped(key) {
                return Ok(None);
            }
            Ok(Some((Box::from(key), Opaque::read(value)?)))
        })?;
        Ok(Self(all.into_iter().flatten().collect()))
    }

    pub(crate) fn write<'a>(&'a self, object: &mut ObjectWriter<'a>) {
        for (key, value) in self.iter() {
            object.entry(key, value);
        }
    }
}

/// Defines a record: the struct, its constructor, and its JSON.
///
/// `required` keys are the arguments of `new`; parsing fails without them. For optional keys:
///
/// - `= value` is the initial value and the default of an absent key;
/// - `absent value` is the default of an absent key if it differs;
/// - `"key" | "alias"` writes both keys, and reads the second if the first is absent;
/// - `reads function` parses the value, to accept older forms;
/// - `omits function` omits the key if the function returns true.
///
/// `drops` is a predicate of unknown keys that are not preserved.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $name:ident, $kind:literal $(, drops $drops:path)?;
        required {
            $($(#[$rmeta:meta])* $rkey:literal => $rfield:ident: $rty:ty;)*
        }
        optional {
            $($(#[$ometa:meta])* $okey:literal $(| $alias:literal)? => $ofield:ident: $oty:ty = $default:expr
                $(, absent $absent:expr)? $(, reads $reads:path)? $(, omits $omits:path)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[$rmeta])* pub $rfield: $rty,)*
            $($(#[$ometa])* pub $ofield: $oty,)*
            other: $crate::record::UnknownKeys,
        }

        impl $name {
            pub fn new($($rfield: $rty),*) -> Self {
                Self {
                    $($rfield,)*
                    $($ofield: $default,)*
                    other: $crate::record::UnknownKeys::default(),
                }
            }

            /// Returns the preserved unknown keys.
            pub fn other(&self) -> &$crate::record::UnknownKeys {
                &self.other
            }
        }

        impl $crate::json::JsonField for $name {
            fn read(value: &serde_json::value::RawValue) -> Result<Self, $crate::json::DecodeError> {
                let mut keys = $crate::json::ObjectKeys::of(value)?;
                Ok(Self {
                    $($rfield: keys.require($rkey)?,)*
                    $($ofield: match keys.take(
                        &[$okey $(, $alias)?],
                        $crate::record::record!(@first $($reads,)? <$oty as $crate::json::JsonField>::read),
                    )? {
                        Some(value) => value,
                        None => $crate::record::record!(@first $($absent,)? $default),
                    },)*
                    other: $crate::record::UnknownKeys::from_remaining(
                        keys,
                        $crate::record::record!(@first $($drops,)? |_| false),
                    )?,
                })
            }

            fn write(&self, out: &mut String) {
                let mut object = $crate::json::ObjectWriter::default();
                self.other.write(&mut object);
                $(object.entry($rkey, &self.$rfield);)*
                $(
                    let omitted = false $(|| $omits(&self.$ofield))?;
                    if !omitted {
                        object.entry($okey, &self.$ofield);
                        $(object.entry($alias, &self.$ofield);)?
                    }
                )*
                object.write(out);
            }
        }

        impl $crate::record::Record for $name {
            const KIND: &'static str = $kind;

            fn from_json(data: &[u8]) -> Result<Self, $crate::record::RecordError> {
                $crate::record::from_json(Self::KIND, data)
            }

            fn to_json(&self) -> Vec<u8> {
                $crate::json::JsonField::to_text(self).into_bytes()
            }
        }

        $crate::json::json_serde!($name);
    };
    (@first $first:expr $(, $second:expr)?) => { $first };
}
pub(crate) use record;

/// Defines `set_state`, which changes a state and its time together.
macro_rules! impl_set_state {
    ($($name:ident: $state:ty),*) => {$(
        impl $name {
            pub fn set_state(&mut self, state: $state, now: $crate::time::Timestamp) {
                self.state = state;
                self.state_time = now;
            }
        }
    )*};
}
pub(crate) use impl_set_state;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, NodeRequest};

    fn error(data: &[u8]) -> RecordError {
        NodeRequest::from_json(data).unwrap_err()
    }

    #[test]
    fn empty_data_is_a_separate_error() {
        let is_empty = |data| matches!(error(data), RecordError::Empty { .. });
        assert!(is_empty(b""));
        assert!(!is_empty(b" "));
        assert!(!is_empty(b"{}"));
    }

    #[test]
    fn invalid_records_are_rejected() {
        assert!(matches!(error(b"{\"state\""), RecordError::Syntax { .. }));
        assert!(matches!(error(b"{} {}"), RecordError::Syntax { .. }));
        assert!(matches!(error(b"\xff{}"), RecordError::NotUtf8 { .. }));
        let large = vec![b' '; MAX_RECORD_BYTES + 1];
        assert!(matches!(error(&large), RecordError::TooLarge { .. }));
        let deep = format!("{{\"x\": {}", "[".repeat(1_000_000));
        assert!(matches!(
            error(deep.as_bytes()),
            RecordError::TooDeep { .. }
        ));
        for (data, found) in [("null", "null"), ("[]", "a list"), ("1", "a number")] {
            assert_eq!(
                error(data.as_bytes()).to_string(),
                format!("invalid node request record: expected an object, found {found}")
            );
        }
    }

    #[test]
    fn the_deepest_valid_value_can_be_decoded() {
        let nested = json::MAX_DEPTH - 1;
        let deep = format!("{}{}", "[".repeat(nested), "]".repeat(nested));
        let record =
            format!(r#"{{"state": "requested", "state_time": 1, "requestor_data": {deep}}}"#);
        let request = NodeRequest::from_json(record.as_bytes()).unwrap();
        request
            .requestor_data
            .decode::<serde_json::Value>()
            .unwrap();
    }

    #[test]
    fn errors_name_missing_keys() {
        assert_eq!(
            error(br#"{"state": "requested"}"#).to_string(),
            "invalid node request record: key `state_time`: missing"
        );
    }

    #[test]
    fn the_last_of_repeated_keys_wins() {
        let data =
            br#"{"state": "failed", "state_time": 1, "x": 1, "st\u0061te": "pending", "x": 2}"#;
        let request = NodeRequest::from_json(data).unwrap();
        assert_eq!(request.state, crate::RequestState::Pending);
        assert_eq!(request.other().get("x").unwrap().text(), "2");
    }

    #[test]
    fn brackets_in_strings_are_not_nesting() {
        let data = format!(
            r#"{{"state": "init", "state_time": 1, "comment": "\"{}"}}"#,
            "[".repeat(1000)
        );
        Node::from_json(data.as_bytes()).unwrap();
    }
}
