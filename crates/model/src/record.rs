//! What every record has in common, and the macro that makes one.

use std::str::Utf8Error;

use serde_json::value::RawValue;

use crate::json::{self, Field, Flaw, Keys, ObjectWriter, Opaque};

/// Records are read up to this size; four times what ZooKeeper stores unless told otherwise.
pub const MAX_RECORD_BYTES: usize = 4 << 20;

/// A record of the store: a JSON object shared with Zuul and Python Nodepool.
pub trait Record: Sized {
    /// What it is called in messages.
    const KIND: &'static str;

    fn from_json(data: &[u8]) -> Result<Self, RecordError>;

    /// Every key of the record, always, and every unknown key that was read; keys are sorted.
    fn to_json(&self) -> Vec<u8>;
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not damage: somebody is about to fill the record, or took the lock of one that was just deleted.
    #[error(
        "the {record} record is empty: it is being created, or is what a late lock left of a deleted one"
    )]
    Empty { record: &'static str },
    #[error("the {record} record has {size} bytes; at most {MAX_RECORD_BYTES} are read")]
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
    #[error("the {record} record cannot be used: {flaw}")]
    Content { record: &'static str, flaw: Flaw },
}

pub(crate) fn from_json<T: Field>(record: &'static str, data: &[u8]) -> Result<T, RecordError> {
    if data.is_empty() {
        return Err(RecordError::Empty { record });
    }
    if data.len() > MAX_RECORD_BYTES {
        let size = data.len();
        return Err(RecordError::TooLarge { record, size });
    }
    let text =
        std::str::from_utf8(data).map_err(|source| RecordError::NotUtf8 { record, source })?;
    if json::deeper_than(text, json::MAX_DEPTH) {
        return Err(RecordError::TooDeep { record });
    }
    let value: &RawValue =
        serde_json::from_str(text).map_err(|source| RecordError::Syntax { record, source })?;
    T::read(value).map_err(|flaw| RecordError::Content { record, flaw })
}

/// Keys that we do not know, kept for whoever does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherKeys(Box<[(Box<str>, Opaque)]>);

impl OtherKeys {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Opaque)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    pub fn get(&self, key: &str) -> Option<&Opaque> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    pub(crate) fn from_rest(keys: Keys<'_>, dropped: fn(&str) -> bool) -> Result<Self, Flaw> {
        let all = keys.rest(|key, value| {
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

/// Makes a record: the struct, its constructor, and its JSON in both directions.
///
/// `required` keys are the arguments of `new`, and reading fails without them. For the others:
///
/// - `= value` is what `new` sets, and what an absent key means;
/// - `absent value` is what an absent key means where that differs;
/// - `"key" | "twin"` is written under both names, and read from the second if the first is absent;
/// - `reads function` accepts older forms of the value;
/// - `omits function` leaves the key out when the function says so.
///
/// `drops` names the unknown keys that are not kept.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $name:ident, $kind:literal $(, drops $drops:path)?;
        required {
            $($(#[$rmeta:meta])* $rkey:literal => $rfield:ident: $rty:ty;)*
        }
        optional {
            $($(#[$ometa:meta])* $okey:literal $(| $twin:literal)? => $ofield:ident: $oty:ty = $default:expr
                $(, absent $absent:expr)? $(, reads $reads:path)? $(, omits $omits:path)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[$rmeta])* pub $rfield: $rty,)*
            $($(#[$ometa])* pub $ofield: $oty,)*
            other: $crate::record::OtherKeys,
        }

        impl $name {
            pub fn new($($rfield: $rty),*) -> Self {
                Self {
                    $($rfield,)*
                    $($ofield: $default,)*
                    other: $crate::record::OtherKeys::default(),
                }
            }

            /// Keys of the record that are not ours, as they were read.
            pub fn other(&self) -> &$crate::record::OtherKeys {
                &self.other
            }
        }

        impl $crate::json::Field for $name {
            fn read(value: &serde_json::value::RawValue) -> Result<Self, $crate::json::Flaw> {
                let mut keys = $crate::json::Keys::of(value)?;
                Ok(Self {
                    $($rfield: keys.require($rkey)?,)*
                    $($ofield: match keys.take(
                        &[$okey $(, $twin)?],
                        $crate::record::record!(@first $($reads,)? <$oty as $crate::json::Field>::read),
                    )? {
                        Some(value) => value,
                        None => $crate::record::record!(@first $($absent,)? $default),
                    },)*
                    other: $crate::record::OtherKeys::from_rest(
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
                        $(object.entry($twin, &self.$ofield);)?
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
                $crate::json::Field::to_text(self).into_bytes()
            }
        }

        $crate::json::json_serde!($name);
    };
    (@first $first:expr $(, $second:expr)?) => { $first };
}
pub(crate) use record;

/// `set_state` for records with a state and its time: the two only ever change together.
macro_rules! timed_state {
    ($($name:ident: $state:ty),*) => {$(
        impl $name {
            pub fn set_state(&mut self, state: $state, now: $crate::time::Timestamp) {
                self.state = state;
                self.state_time = now;
            }
        }
    )*};
}
pub(crate) use timed_state;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, NodeRequest};

    fn error(data: &[u8]) -> RecordError {
        NodeRequest::from_json(data).unwrap_err()
    }

    #[test]
    fn no_data_is_told_apart_from_bad_data() {
        let is_empty = |data| matches!(error(data), RecordError::Empty { .. });
        assert!(is_empty(b""));
        assert!(!is_empty(b" "));
        assert!(!is_empty(b"{}"));
    }

    #[test]
    fn what_cannot_be_a_record_is_refused() {
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
                format!(
                    "the node request record cannot be used: expected an object, found {found}"
                )
            );
        }
    }

    #[test]
    fn the_deepest_value_that_is_read_can_be_decoded() {
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
    fn a_missing_key_is_named() {
        assert_eq!(
            error(br#"{"state": "requested"}"#).to_string(),
            "the node request record cannot be used: key `state_time`: it is missing"
        );
    }

    #[test]
    fn of_a_repeated_key_the_last_counts() {
        let data =
            br#"{"state": "failed", "state_time": 1, "x": 1, "st\u0061te": "pending", "x": 2}"#;
        let request = NodeRequest::from_json(data).unwrap();
        assert_eq!(request.state, crate::RequestState::Pending);
        assert_eq!(request.other().get("x").unwrap().text(), "2");
    }

    #[test]
    fn brackets_in_text_are_not_nesting() {
        let data = format!(
            r#"{{"state": "init", "state_time": 1, "comment": "\"{}"}}"#,
            "[".repeat(1000)
        );
        Node::from_json(data.as_bytes()).unwrap();
    }
}
