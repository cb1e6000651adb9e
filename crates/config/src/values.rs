//! The types of values in the file.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::decode::{Decode, Decoder};
use crate::excerpt::HIDDEN;
use crate::section::{Describe, TypeInfo};
use crate::source::Span;
use crate::yaml::{Scalar, ScalarType, YamlNode, YamlValue};

/// A value and its position. Equality compares the value only.
#[derive(Clone, Default)]
pub struct Spanned<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: Describe> Describe for Spanned<T> {
    fn type_info() -> TypeInfo {
        T::type_info()
    }
}

/// A name and its position.
pub type Name = Spanned<String>;

/// A name that becomes part of file names and of paths in the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PathName(pub Name);

impl Deref for PathName {
    type Target = Name;

    fn deref(&self) -> &Name {
        &self.0
    }
}

impl Decode<()> for PathName {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let name = Name::decode(node, &(), decoder)?;
        check_path_name(&name, decoder);
        Some(Self(name))
    }
}

pub(crate) fn check_path_name(name: &Name, decoder: &mut Decoder<'_>) {
    let problem = if name.is_empty() {
        Some("it is empty")
    } else if name.contains('/') {
        Some("it contains `/`")
    } else if matches!(name.as_str(), "." | "..") {
        Some("it means a directory")
    } else if name.contains(char::is_control) {
        Some("it contains a control character")
    } else {
        None
    };
    if let Some(problem) = problem {
        let message = format!("this name cannot be part of a path: {problem}");
        decoder
            .error("bad-name", name.span, message)
            .map(|finding| finding.help("use letters, digits, `-`, `_` and `.`"));
    } else if name.contains(char::is_whitespace) {
        decoder
            .lenient(
                "bad-name",
                name.span,
                "this name becomes part of file names, and white space in it breaks scripts",
            )
            .map(|finding| finding.help("use letters, digits, `-`, `_` and `.`"));
    }
}

impl Describe for PathName {
    fn type_info() -> TypeInfo {
        type_info("text", json!({"type": "string", "pattern": "^[^/\\s]+$"}))
    }
}

pub(crate) fn type_info(text: &str, schema: Json) -> TypeInfo {
    TypeInfo {
        text: text.to_owned(),
        schema,
        section: None,
    }
}

macro_rules! describe {
    ($($type:ty => $text:literal, $schema:tt;)+) => {
        $(impl Describe for $type {
            fn type_info() -> TypeInfo {
                type_info($text, json!($schema))
            }
        })+
    };
}

describe! {
    bool => "true or false", {"type": "boolean"};
    String => "text", {"type": ["string", "number", "boolean"]};
    i64 => "whole number", {"type": "integer"};
    u64 => "whole number", {"type": "integer", "minimum": 0};
    f64 => "number", {"type": "number"};
    Seconds => "seconds", {"type": "number", "minimum": 0};
    Limit => "whole number", {"type": "integer"};
    Concurrency => "whole number", {"type": "integer"};
    Port => "port", {"type": "integer", "minimum": 1, "maximum": 65535};
    SecretText => "text", {"type": ["string", "number", "boolean"]};
    Json => "anything", true;
}

impl<T: Describe> Describe for Option<T> {
    fn type_info() -> TypeInfo {
        let mut type_info = T::type_info();
        if let Some(types) = type_info.schema.get_mut("type") {
            let mut all = match types.take() {
                Json::Array(all) => all,
                one => vec![one],
            };
            if !all.contains(&json!("null")) {
                all.push(json!("null"));
            }
            *types = Json::Array(all);
        }
        type_info
    }
}

/// Returns the plural of a type's name.
fn plural(one: &str) -> String {
    match one {
        "mapping" | "port" | "whole number" => format!("{one}s"),
        _ => one.to_owned(),
    }
}

impl<T: Describe> Describe for Vec<T> {
    fn type_info() -> TypeInfo {
        let item = T::type_info();
        TypeInfo {
            text: format!("list of {}", plural(&item.text)),
            schema: json!({"type": ["array", "null"], "items": item.schema}),
            section: item.section,
        }
    }
}

/// A duration in seconds, possibly fractional, never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Seconds(pub Duration);

impl Seconds {
    /// The longest time that is told from a longer one: ten thousand years. Clocks can represent that much from now on.
    const LONGEST: Duration = Duration::from_secs(10_000 * 365 * 24 * 60 * 60);

    pub const fn new(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl Deref for Seconds {
    type Target = Duration;

    fn deref(&self) -> &Duration {
        &self.0
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else {
            serializer.serialize_f64(self.0.as_secs_f64())
        }
    }
}

impl Decode<()> for Seconds {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let value = match &node.value {
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Int(_) | ScalarType::Float(_),
                ..
            }) => f64::decode(node, &(), decoder)?,
            _ => {
                decoder.wrong_type(node, "a number of seconds");
                return None;
            }
        };
        let duration = Duration::try_from_secs_f64(value).ok();
        if duration.is_none() {
            let message = if value < 0.0 {
                "a time must not be negative"
            } else {
                "this time is too long"
            };
            decoder.error("out-of-range", node.span, message);
        }
        duration.map(|duration| Self(duration.min(Self::LONGEST)))
    }
}

/// A duration for which zero, a negative number and absence mean "unlimited".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct MaybeSeconds(pub Option<Seconds>);

impl Decode<()> for MaybeSeconds {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Int(i128::MIN..=0),
                ..
            }) => Some(Self(None)),
            _ => Seconds::decode(node, &(), decoder)
                .map(|seconds| Self(Some(seconds).filter(|seconds| !seconds.is_zero()))),
        }
    }
}

impl Describe for MaybeSeconds {
    fn type_info() -> TypeInfo {
        type_info("seconds", json!({"type": "number"}))
    }
}

/// A maximum number; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Limit(pub Option<u64>);

impl Limit {
    pub const NONE: Self = Self(None);
}

impl Decode<()> for Limit {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        // Nodepool compares with the limit, so a negative one admits nothing, as zero does.
        i64::decode(node, &(), decoder).map(|value| Self(Some(u64::try_from(value).unwrap_or(0))))
    }
}

/// The maximum number of concurrent launches: `None` means unlimited, zero disables request handling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Concurrency(pub Option<u64>);

impl Decode<()> for Concurrency {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        i64::decode(node, &(), decoder).map(|value| Self(u64::try_from(value).ok()))
    }
}

/// A TCP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Port(pub u16);

impl Decode<()> for Port {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let value = i64::decode(node, &(), decoder)?;
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        if port.is_none() {
            decoder.error(
                "out-of-range",
                node.span,
                "a port is a number from 1 to 65535",
            );
        }
        port.map(Self)
    }
}

/// Text that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl Decode<()> for SecretText {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.findings.secrets.push(node.span);
        String::decode(node, &(), decoder).map(Self)
    }
}

/// The value of an environment variable; hidden if it comes from the secure file or the environment.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvValue {
    pub value: String,
    pub secret: bool,
}

impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret { HIDDEN } else { &self.value })
    }
}

impl Serialize for EnvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.secret { HIDDEN } else { &self.value })
    }
}

impl Decode<()> for EnvValue {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        // It may be a password, and no message needs it.
        decoder.findings.secrets.push(node.span);
        let secret = decoder.sources.is_confidential(node.span);
        String::decode(node, &(), decoder).map(|value| Self { value, secret })
    }
}

impl Describe for EnvValue {
    fn type_info() -> TypeInfo {
        String::type_info()
    }
}

/// A mapping with arbitrary keys, in the order of the file.
pub type Table<T> = IndexMap<String, T>;

impl<T: Decode<()>> Decode<()> for Table<T> {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let map = decoder.map(node, "a mapping")?;
        let values = map.entries.iter().filter_map(|entry| {
            T::decode(&entry.value, &(), decoder).map(|value| (entry.key.clone(), value))
        });
        Some(values.collect())
    }
}

impl<T: Describe> Describe for Table<T> {
    fn type_info() -> TypeInfo {
        let value = T::type_info();
        TypeInfo {
            text: format!("mapping of {}", plural(&value.text)),
            schema: json!({"type": ["object", "null"], "additionalProperties": value.schema}),
            section: value.section,
        }
    }
}

/// Free-form data.
impl Decode<()> for Json {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let node = decoder.passed_through(node);
        let json = node.to_json(&mut |span, message| {
            decoder
                .error("out-of-range", span, message)
                .map(|finding| finding.help("put it in quotes, if text will do"));
        });
        Some(json)
    }
}

/// An object that is passed to an API unchanged.
pub type Object = serde_json::Map<String, Json>;

impl Decode<()> for Object {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.map(node, "a mapping")?;
        match Json::decode(node, &(), decoder)? {
            Json::Object(object) => Some(object),
            _ => None,
        }
    }
}

impl Describe for Object {
    fn type_info() -> TypeInfo {
        type_info("mapping", json!({"type": ["object", "null"]}))
    }
}

/// A list that may be written as its only element.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Decode<O>, O> Decode<O> for OneOrMany<T> {
    fn decode(node: &Rc<YamlNode>, outer: &O, decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::List(_) => Vec::decode(node, outer, decoder).map(Self),
            _ => T::decode(node, outer, decoder).map(|one| Self(vec![one])),
        }
    }
}

impl<T: Describe> Describe for OneOrMany<T> {
    fn type_info() -> TypeInfo {
        let one = T::type_info();
        TypeInfo {
            text: format!("list of {}, or one {}", plural(&one.text), one.text),
            schema: json!({"anyOf": [one.schema, {"type": ["array", "null"], "items": one.schema}]}),
            section: one.section,
        }
    }
}

/// Declares an enumeration: its variants and their spellings; the first is the default.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        enum $name:ident { $(#[doc = $first_doc:literal])* $first:ident = $first_text:literal, $($(#[doc = $variant_doc:literal])* $variant:ident = $text:literal),* $(,)? }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
        pub enum $name {
            $(#[doc = $first_doc])*
            #[default]
            #[serde(rename = $first_text)]
            $first,
            $($(#[doc = $variant_doc])* #[serde(rename = $text)] $variant),*
        }

        impl $name {
            const ALL: &[(&'static str, Self)] = &[($first_text, Self::$first), $(($text, Self::$variant)),*];

            /// Returns the spelling in the file.
            pub fn as_str(self) -> &'static str {
                Self::ALL.iter().find(|(_, value)| *value == self).map_or("", |(text, _)| text)
            }
        }

        impl $crate::decode::Decode<()> for $name {
            fn decode(node: &std::rc::Rc<$crate::yaml::YamlNode>, (): &(), decoder: &mut $crate::decode::Decoder<'_>) -> Option<Self> {
                $crate::values::decode_choice(node, Self::ALL, decoder)
            }
        }

        impl $crate::section::Describe for $name {
            fn type_info() -> $crate::section::TypeInfo {
                let all: Vec<&str> = Self::ALL.iter().map(|(text, _)| *text).collect();
                let text = all.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ");
                $crate::values::type_info(&text, serde_json::json!({ "enum": all }))
            }
        }
    };
}
pub(crate) use choice;

pub(crate) fn decode_choice<T: Copy>(
    node: &YamlNode,
    all: &[(&'static str, T)],
    decoder: &mut Decoder<'_>,
) -> Option<T> {
    let scalar = decoder.scalar(node, "text")?;
    let found = all
        .iter()
        .find(|(text, _)| *text == scalar.text)
        .map(|(_, value)| *value);
    if found.is_none() {
        let suggestion = crate::decode::similar(&scalar.text, all.iter().map(|(text, _)| *text));
        let message = match suggestion {
            None if decoder.sources.is_secure(node.span) => {
                "this is not one of the values allowed here".to_owned()
            }
            _ => {
                let quoted = decoder.sources.quote(node.span, &scalar.text);
                format!("`{quoted}` is not one of the values allowed here")
            }
        };
        if let Some(finding) = decoder.error("unknown-value", node.span, message) {
            finding.suggestion = suggestion;
            finding.allowed = all.iter().map(|(text, _)| (*text).to_owned()).collect();
        }
    }
    found
}
