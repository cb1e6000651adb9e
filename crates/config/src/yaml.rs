//! YAML as PyYAML's safe loader reads it, with the position of every node.
//!
//! Nodepool's files are written for YAML 1.1: `yes` is a boolean, `010` is eight, `<<` merges. The grammar comes from
//! an event parser; scalars, merge keys, anchors and resource limits are handled here. This module knows nothing of
//! Nodepool.

mod offsets;
mod parse;
mod plain;
mod scalar;

use std::rc::Rc;

use crate::source::Span;

pub(crate) use parse::{YamlProblem, parse};
pub use plain::yaml_to_json;

/// A node. Nodes are shared where the file uses aliases.
#[derive(Debug)]
pub(crate) struct YamlNode {
    pub(crate) span: Span,
    pub(crate) value: YamlValue,
}

#[derive(Debug)]
pub(crate) enum YamlValue {
    Scalar(Scalar),
    List(Vec<Rc<YamlNode>>),
    Map(Map),
}

/// A scalar with its text after unquoting.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: ScalarType,
}

/// The type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScalarType {
    Null,
    Bool(bool),
    /// Saturates, because no valid value is near the limits.
    Int(i128),
    Float(f64),
    Text,
}

/// A mapping; of duplicate keys only the last one is kept, as in PyYAML.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) span: Span,
    pub(crate) entries: Vec<YamlEntry>,
}

#[derive(Debug, Clone)]
pub(crate) struct YamlEntry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) value: Rc<YamlNode>,
}

impl YamlNode {
    /// Returns an empty document.
    pub(crate) fn empty(span: Span) -> Self {
        Self {
            span,
            value: YamlValue::Scalar(Scalar {
                text: String::new(),
                kind: ScalarType::Null,
            }),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, YamlValue::Scalar(scalar) if scalar.kind == ScalarType::Null)
    }

    /// Returns a description of the node's type for messages.
    pub(crate) fn description(&self) -> &'static str {
        match &self.value {
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a mapping",
            YamlValue::Scalar(scalar) => match scalar.kind {
                ScalarType::Null => "nothing",
                ScalarType::Bool(_) => "a boolean",
                ScalarType::Int(_) => "a whole number",
                ScalarType::Float(_) => "a number with a fraction",
                ScalarType::Text => "text",
            },
        }
    }
}

impl Map {
    pub(crate) fn entry(&self, key: &str) -> Option<&YamlEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Returns the entry unless its value is null, which means "not set" throughout the file.
    pub(crate) fn set(&self, key: &str) -> Option<&YamlEntry> {
        self.entry(key).filter(|entry| !entry.value.is_null())
    }

    /// Returns the position to report missing keys at: the first key, or the braces.
    pub(crate) fn head(&self) -> Span {
        self.entries
            .first()
            .map_or(self.span, |entry| entry.key_span)
    }
}
