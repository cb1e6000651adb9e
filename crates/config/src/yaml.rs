//! YAML as PyYAML's safe loader reads it, with the place of every node.
//!
//! Nodepool's files were written for YAML 1.1: `yes` is a boolean, `010` is eight, `<<` merges. The
//! grammar comes from an event parser; the meaning of scalars, merge keys, anchors and the limits
//! that keep a hostile file from hurting are here. Nothing in this module knows Nodepool.

mod offsets;
mod parse;
mod plain;
mod scalar;

use std::rc::Rc;

use crate::source::Span;

pub(crate) use parse::{Problem, parse};
pub use plain::yaml_to_json;

/// One node. Nodes are shared where the file uses aliases.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Map(Map),
}

/// A scalar with its text as written (after unquoting).
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

/// What a scalar means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    /// Saturates: nothing is near the ends.
    Int(i128),
    Float(f64),
    Text,
}

/// A mapping; of two equal keys only the later one is here, as in PyYAML.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) span: Span,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) value: Rc<Node>,
}

impl Node {
    /// An empty document.
    pub(crate) fn empty(span: Span) -> Self {
        Self {
            span,
            value: Value::Scalar(Scalar {
                text: String::new(),
                kind: Kind::Null,
            }),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.kind == Kind::Null)
    }

    /// What a person would call this.
    pub(crate) fn description(&self) -> &'static str {
        match &self.value {
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Scalar(scalar) => match scalar.kind {
                Kind::Null => "nothing",
                Kind::Bool(_) => "a boolean",
                Kind::Int(_) => "a whole number",
                Kind::Float(_) => "a number with a fraction",
                Kind::Text => "text",
            },
        }
    }
}

impl Map {
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The entry, unless its value is null, which means "not set" throughout the file.
    pub(crate) fn set(&self, key: &str) -> Option<&Entry> {
        self.entry(key).filter(|entry| !entry.value.is_null())
    }

    /// The place to point at when something is missing: the first key, or the braces.
    pub(crate) fn head(&self) -> Span {
        self.entries
            .first()
            .map_or(self.span, |entry| entry.key_span)
    }
}
