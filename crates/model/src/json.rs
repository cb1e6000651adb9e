//! JSON as the records need it: nothing lost, nothing guessed, errors that name the key.
//!
//! Records are shared with Python programs that write integers of any size, so a value we do not
//! interpret is kept as the text it was ([`Opaque`]); serde's `flatten` would squeeze it through 64-bit
//! numbers. Reading goes key by key over borrowed text: that gives the path of a wrong value, never
//! prints the value itself (some hold tokens), and needs no recursion. Writing cannot fail.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::text::shared;

/// How deep values may be nested: what any JSON reader of this program can still decode.
pub(crate) const MAX_DEPTH: usize = 127;

/// What is wrong in a JSON document, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", Place(path))]
pub struct Flaw {
    /// The key, with list positions and inner keys: `node_types[2]`. Empty for the document itself.
    pub path: String,
    pub reason: String,
}

struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "key `{}`: ", self.0)
        }
    }
}

impl Flaw {
    pub(crate) fn new(reason: impl fmt::Display) -> Self {
        Self {
            path: String::new(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn wrong_type(expected: &str, found: &RawValue) -> Self {
        Self::new(format_args!("expected {expected}, found {}", kind(found)))
    }

    fn under_key(mut self, key: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{key}{dot}{}", self.path);
        self
    }

    fn under_index(self, index: usize) -> Self {
        self.under_key(&format!("[{index}]"))
    }
}

/// The JSON type of a value, in words.
fn kind(value: &RawValue) -> &'static str {
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

/// True if brackets nest deeper than `limit`. Text that is not JSON gets an answer, too.
pub(crate) fn deeper_than(text: &str, limit: usize) -> bool {
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

/// A value with one JSON form.
pub(crate) trait Field: Sized {
    fn read(value: &RawValue) -> Result<Self, Flaw>;
    fn write(&self, out: &mut String);

    fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

/// serde for a [`Field`], so that it can stand inside other JSON documents.
macro_rules! json_serde {
    ($($name:ty),* $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serde_json::value::RawValue::from_string($crate::json::Field::to_text(self))
                    .map_err(serde::ser::Error::custom)?
                    .serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
                $crate::json::Field::read(&value).map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use json_serde;

/// serde and [`Field`] for a type that is a string on the wire: `Display` out, `FromStr` in.
macro_rules! text_form {
    ($($name:ty),* $(,)?) => {$(
        impl $crate::json::Field for $name {
            fn read(value: &serde_json::value::RawValue) -> Result<Self, $crate::json::Flaw> {
                $crate::json::text(value)?.parse().map_err($crate::json::Flaw::new)
            }

            fn write(&self, out: &mut String) {
                $crate::json::write_text(out, &self.to_string());
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
pub(crate) use text_form;

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::borrow::Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

pub(crate) fn text(value: &RawValue) -> Result<Cow<'_, str>, Flaw> {
    if !is_string(value) {
        return Err(Flaw::wrong_type("a string", value));
    }
    // The text is valid JSON, so only half of a surrogate pair can still be wrong.
    let text: Text<'_> = serde_json::from_str(value.get())
        .map_err(|_| Flaw::new("expected text, found an escape that is no character"))?;
    Ok(text.0)
}

pub(crate) fn write_text(out: &mut String, text: &str) {
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
    // Control characters are all below U+0100: one escape each.
    let _infallible = write!(out, "\\u{:04x}", u32::from(c));
}

impl Field for Box<str> {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        text(value).map(Self::from)
    }

    fn write(&self, out: &mut String) {
        write_text(out, self);
    }
}

/// Text that is the same in many records.
impl Field for Arc<str> {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        text(value).map(|text| shared(&text))
    }

    fn write(&self, out: &mut String) {
        write_text(out, self);
    }
}

impl Field for bool {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        match value.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Flaw::wrong_type("true or false", value)),
        }
    }

    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }
}

impl Field for i64 {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        if kind(value) != "a number" {
            return Err(Flaw::wrong_type("a whole number", value));
        }
        value
            .get()
            .parse()
            .map_err(|_| Flaw::new("expected a whole number of at most 64 bits"))
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.to_string());
    }
}

/// A number that is not NaN nor infinite.
pub(crate) fn finite(value: &RawValue) -> Result<f64, Flaw> {
    if kind(value) != "a number" {
        return Err(Flaw::wrong_type("a number", value));
    }
    match value.get().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(Flaw::new("expected a number that fits a 64-bit float")),
    }
}

/// The shortest form that reads back as the same float; it always has a point or an exponent.
pub(crate) fn write_float(out: &mut String, number: f64) {
    let _infallible = write!(out, "{number:?}");
}

impl<T: Field> Field for Option<T> {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
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

/// Null reads as the empty list: a list that nobody filled in.
impl<T: Field> Field for Vec<T> {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        if is_null(value) {
            return Ok(Self::new());
        }
        let items: Vec<&RawValue> =
            serde_json::from_str(value.get()).map_err(|_| Flaw::wrong_type("a list", value))?;
        items
            .into_iter()
            .enumerate()
            .map(|(index, item)| T::read(item).map_err(|flaw| flaw.under_index(index)))
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

/// The keys of an object, each taken once; of a repeated key the last one counts, as in Python.
pub(crate) struct Keys<'a>(BTreeMap<Text<'a>, &'a RawValue>);

impl<'a> Keys<'a> {
    pub(crate) fn of(value: &'a RawValue) -> Result<Self, Flaw> {
        if !is_object(value) {
            return Err(Flaw::wrong_type("an object", value));
        }
        serde_json::from_str(value.get()).map(Self).map_err(|_| {
            Flaw::new("expected keys that are text, found an escape that is no character")
        })
    }

    /// Takes `names` out and reads the first that is there.
    pub(crate) fn take<T>(
        &mut self,
        names: &[&str],
        read: impl FnOnce(&RawValue) -> Result<T, Flaw>,
    ) -> Result<Option<T>, Flaw> {
        let mut found = None;
        for name in names {
            let value = self.0.remove(*name);
            found = found.or(value.map(|value| (name, value)));
        }
        found
            .map(|(name, value)| read(value).map_err(|flaw| flaw.under_key(name)))
            .transpose()
    }

    pub(crate) fn require<T: Field>(&mut self, name: &str) -> Result<T, Flaw> {
        self.take(&[name], T::read)?
            .ok_or_else(|| Flaw::new("it is missing").under_key(name))
    }

    /// Everything not taken, in the order of the keys.
    pub(crate) fn rest<T>(
        self,
        mut read: impl FnMut(&str, &RawValue) -> Result<T, Flaw>,
    ) -> Result<Vec<T>, Flaw> {
        self.0
            .iter()
            .map(|(key, value)| read(&key.0, value).map_err(|flaw| flaw.under_key(&key.0)))
            .collect()
    }
}

/// Writes an object with its keys in order, so that equal records are equal bytes.
#[derive(Default)]
pub(crate) struct ObjectWriter<'a>(BTreeMap<&'a str, String>);

impl<'a> ObjectWriter<'a> {
    pub(crate) fn entry(&mut self, key: &'a str, value: &impl Field) {
        self.0.insert(key, value.to_text());
    }

    pub(crate) fn write(&self, out: &mut String) {
        out.push('{');
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            write_text(out, key);
            out.push_str(": ");
            out.push_str(value);
        }
        out.push('}');
    }
}

/// A JSON value that belongs to somebody else, kept as the text it was read as.
///
/// Equality is that of the text. The default is null. `Debug` shows only the size, because connection
/// data holds tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Opaque(Option<Arc<str>>);

impl Opaque {
    pub const NULL: Self = Self(None);

    pub fn empty_object() -> Self {
        Self::of("{}")
    }

    pub fn string(text: &str) -> Self {
        let mut json = String::with_capacity(text.len() + 2);
        write_text(&mut json, text);
        Self::of(&json)
    }

    pub fn encode(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|json| Self::of(&json))
    }

    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// The text of a JSON string; none for any other value.
    pub fn as_string(&self) -> Option<String> {
        self.decode().ok()
    }

    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }

    /// The JSON text.
    pub fn text(&self) -> &str {
        self.0.as_deref().unwrap_or("null")
    }

    /// `json` must be valid JSON.
    fn of(json: &str) -> Self {
        Self((json != "null").then(|| shared(json)))
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

impl Field for Opaque {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        Ok(Self::of(value.get()))
    }

    fn write(&self, out: &mut String) {
        out.push_str(self.text());
    }
}

json_serde!(Opaque);
