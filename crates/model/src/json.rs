//! Lossless JSON for records.
//!
//! Python programs write integers of any size, so values that are not interpreted are kept as text ([`Opaque`]);
//! serde's `flatten` would convert them to 64-bit numbers. Errors have the path of a wrong value but never the value
//! itself, which may contain a token.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::intern::intern;

/// The maximum nesting depth, which `serde_json` can still decode.
pub(crate) const MAX_DEPTH: usize = 127;

/// An error in a JSON document and its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", KeyPrefix(path))]
pub struct DecodeError {
    /// The path of the value, such as `node_types[2]`. Empty for the document itself.
    pub path: String,
    pub reason: String,
}

struct KeyPrefix<'a>(&'a str);

impl fmt::Display for KeyPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "key `{}`: ", self.0)
        }
    }
}

impl DecodeError {
    pub(crate) fn new(reason: impl fmt::Display) -> Self {
        Self {
            path: String::new(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn wrong_type(expected: &str, found: &RawValue) -> Self {
        Self::new(format_args!(
            "expected {expected}, found {}",
            json_type(found)
        ))
    }

    fn in_key(mut self, key: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{key}{dot}{}", self.path);
        self
    }

    fn in_index(self, index: usize) -> Self {
        self.in_key(&format!("[{index}]"))
    }
}

/// Returns the JSON type of a value, for messages.
fn json_type(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

pub(crate) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

pub(crate) fn is_string(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

pub(crate) fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

/// Returns whether brackets nest deeper than `limit`. The text need not be valid JSON.
pub(crate) fn exceeds_depth(text: &str, limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A value that is converted from and to JSON.
pub(crate) trait JsonField: Sized {
    fn read(value: &RawValue) -> Result<Self, DecodeError>;
    fn write(&self, out: &mut String);

    fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

/// Implements serde's traits by [`JsonField`].
macro_rules! json_serde {
    ($($name:ty),* $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serde_json::value::RawValue::from_string($crate::json::JsonField::to_text(self))
                    .map_err(serde::ser::Error::custom)?
                    .serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
                $crate::json::JsonField::read(&value).map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use json_serde;

/// Implements serde's traits and [`JsonField`] by `Display` and `FromStr`.
macro_rules! json_string {
    ($($name:ty),* $(,)?) => {$(
        impl $crate::json::JsonField for $name {
            fn read(value: &serde_json::value::RawValue) -> Result<Self, $crate::json::DecodeError> {
                $crate::json::text(value)?.parse().map_err($crate::json::DecodeError::new)
            }

            fn write(&self, out: &mut String) {
                $crate::json::write_string(out, &self.to_string());
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                std::borrow::Cow::<'de, str>::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use json_string;

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::borrow::Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

pub(crate) fn text(value: &RawValue) -> Result<Cow<'_, str>, DecodeError> {
    if !is_string(value) {
        return Err(DecodeError::wrong_type("a string", value));
    }
    // The text is valid JSON, so only an unpaired surrogate can fail.
    let text: Text<'_> = serde_json::from_str(value.get())
        .map_err(|_| DecodeError::new("expected a string, found an invalid escape"))?;
    Ok(text.0)
}

pub(crate) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => push_escaped(out, c),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn push_escaped(out: &mut String, c: char) {
    // All control characters are below U+0100.
    let _infallible = write!(out, "\\u{:04x}", u32::from(c));
}

impl JsonField for Box<str> {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        text(value).map(Self::from)
    }

    fn write(&self, out: &mut String) {
        write_string(out, self);
    }
}

/// A string that is repeated in many records.
impl JsonField for Arc<str> {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        text(value).map(|text| intern(&text))
    }

    fn write(&self, out: &mut String) {
        write_string(out, self);
    }
}

impl JsonField for bool {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        match value.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(DecodeError::wrong_type("true or false", value)),
        }
    }

    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

impl JsonField for i64 {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        if json_type(value) != "a number" {
            return Err(DecodeError::wrong_type("a whole number", value));
        }
        value
            .get()
            .parse()
            .map_err(|_| DecodeError::new("expected a whole number of at most 64 bits"))
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.to_string());
    }
}

/// Parses a finite number.
pub(crate) fn finite_number(value: &RawValue) -> Result<f64, DecodeError> {
    if json_type(value) != "a number" {
        return Err(DecodeError::wrong_type("a number", value));
    }
    match value.get().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(DecodeError::new(
            "expected a number that fits a 64-bit float",
        )),
    }
}

/// Writes the shortest form that parses to the same float, always with a point or an exponent.
pub(crate) fn write_float(out: &mut String, number: f64) {
    let _infallible = write!(out, "{number:?}");
}

impl<T: JsonField> JsonField for Option<T> {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        if is_null(value) {
            Ok(None)
        } else {
            T::read(value).map(Some)
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Some(value) => value.write(out),
            None => out.push_str("null"),
        }
    }
}

/// Null is parsed as the empty list.
impl<T: JsonField> JsonField for Vec<T> {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        if is_null(value) {
            return Ok(Self::new());
        }
        let items: Vec<&RawValue> = serde_json::from_str(value.get())
            .map_err(|_| DecodeError::wrong_type("a list", value))?;
        items
            .into_iter()
            .enumerate()
            .map(|(index, item)| T::read(item).map_err(|error| error.in_index(index)))
            .collect()
    }

    fn write(&self, out: &mut String) {
        out.push('[');
        for (index, item) in self.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            item.write(out);
        }
        out.push(']');
    }
}

/// The keys of an object, to be taken one by one. The last of repeated keys wins, as in Python.
pub(crate) struct ObjectKeys<'a>(BTreeMap<Text<'a>, &'a RawValue>);

impl<'a> ObjectKeys<'a> {
    pub(crate) fn of(value: &'a RawValue) -> Result<Self, DecodeError> {
        if !is_object(value) {
            return Err(DecodeError::wrong_type("an object", value));
        }
        serde_json::from_str(value.get())
            .map(Self)
            .map_err(|_| DecodeError::new("expected string keys, found an invalid escape"))
    }

    /// Removes all `names` and parses the first that is present.
    pub(crate) fn take<T>(
        &mut self,
        names: &[&str],
        read: impl FnOnce(&RawValue) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        let mut found = None;
        for name in names {
            let value = self.0.remove(*name);
            found = found.or(value.map(|value| (name, value)));
        }
        found
            .map(|(name, value)| read(value).map_err(|error| error.in_key(name)))
            .transpose()
    }

    pub(crate) fn require<T: JsonField>(&mut self, name: &str) -> Result<T, DecodeError> {
        self.take(&[name], T::read)?
            .ok_or_else(|| DecodeError::new("missing").in_key(name))
    }

    /// Parses all keys that were not taken, in order.
    pub(crate) fn remaining<T>(
        self,
        mut read: impl FnMut(&str, &RawValue) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.0
            .iter()
            .map(|(key, value)| read(&key.0, value).map_err(|error| error.in_key(&key.0)))
            .collect()
    }
}

/// Writes an object with sorted keys, so that equal records have equal bytes.
#[derive(Default)]
pub(crate) struct ObjectWriter<'a>(BTreeMap<&'a str, String>);

impl<'a> ObjectWriter<'a> {
    pub(crate) fn entry(&mut self, key: &'a str, value: &impl JsonField) {
        self.0.insert(key, value.to_text());
    }

    pub(crate) fn write(&self, out: &mut String) {
        out.push('{');
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            write_string(out, key);
            out.push_str(": ");
            out.push_str(value);
        }
        out.push('}');
    }
}

/// An uninterpreted JSON value, kept as its original text.
///
/// Compares by text. The default is null. `Debug` shows only the size, because connection data contains tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Opaque(Option<Arc<str>>);

impl Opaque {
    pub const NULL: Self = Self(None);

    pub(crate) fn empty_object() -> Self {
        Self::of("{}")
    }

    pub fn string(text: &str) -> Self {
        let mut json = String::with_capacity(text.len() + 2);
        write_string(&mut json, text);
        Self::of(&json)
    }

    pub fn encode(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|json| Self::of(&json))
    }

    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// Returns the content of a JSON string, or `None` for other values.
    pub fn as_string(&self) -> Option<String> {
        self.decode().ok()
    }

    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the JSON text.
    pub fn text(&self) -> &str {
        self.0.as_deref().unwrap_or("null")
    }

    /// `json` must be valid JSON.
    fn of(json: &str) -> Self {
        Self((json != "null").then(|| intern(json)))
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("null"),
            Some(json) => write!(f, "({} bytes of JSON)", json.len()),
        }
    }
}

impl JsonField for Opaque {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        Ok(Self::of(value.get()))
    }

    fn write(&self, out: &mut String) {
        out.push_str(self.text());
    }
}

json_serde!(Opaque);
