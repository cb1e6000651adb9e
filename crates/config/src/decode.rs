//! From the tree to typed values, collecting every problem on the way.
//!
//! A value that cannot be read is reported and replaced by its default, so that one mistake hides
//! no other; a configuration with an error is never handed out, so no such replacement is ever used.

use std::rc::Rc;

use crate::diagnostic::{Finding, Findings, Severity};
use crate::excerpt::{HIDDEN, holds_secrets, sounds_secret};
use crate::section::Section;
use crate::source::{Sources, Span};
use crate::values::Spanned;
use crate::yaml::{Entry, Kind, Map, Node, Scalar, Value};

/// How strictly a file is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What Nodepool's daemons let pass is a warning.
    Daemon,
    /// For `config-validate`: it is an error.
    Check,
    /// As for daemons, but to be looked at: what came from the environment or the secure file is hidden in everything
    /// that the file hands on to others. Nothing can work with such a configuration.
    Show,
}

/// A type that can be read from a node. `Outer` is what surrounds it and gives it defaults.
pub(crate) trait Decode<Outer>: Sized {
    fn decode(node: &Rc<Node>, outer: &Outer, decoder: &mut Decoder<'_>) -> Option<Self>;
}

/// Where findings go, and what is needed to word them.
pub(crate) struct Decoder<'s> {
    pub(crate) sources: &'s Sources,
    pub(crate) findings: Findings,
    mode: Mode,
}

impl<'s> Decoder<'s> {
    pub(crate) fn new(sources: &'s Sources, mode: Mode) -> Self {
        Self {
            sources,
            findings: Findings::default(),
            mode,
        }
    }

    /// An error in any mode.
    pub(crate) fn error(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> Option<&mut Finding> {
        self.report(Severity::Error, code, span, message.into())
    }

    /// Something Nodepool's daemons accept and its validator, or good sense, does not.
    pub(crate) fn lenient(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> Option<&mut Finding> {
        let severity = match self.mode {
            Mode::Daemon | Mode::Show => Severity::Warning,
            Mode::Check => Severity::Error,
        };
        self.report(severity, code, span, message.into())
    }

    /// Worth saying, never fatal.
    pub(crate) fn warning(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> Option<&mut Finding> {
        self.report(Severity::Warning, code, span, message.into())
    }

    fn report(
        &mut self,
        severity: Severity,
        code: &'static str,
        span: Span,
        message: String,
    ) -> Option<&mut Finding> {
        let finding = Finding {
            code,
            severity,
            span,
            message,
            labels: Vec::new(),
            help: None,
            allowed: Vec::new(),
            suggestion: None,
        };
        self.findings.add(finding)
    }

    pub(crate) fn wrong_type(&mut self, node: &Node, expected: &str) {
        self.error(
            "wrong-type",
            node.span,
            format!("expected {expected}, found {}", node.description()),
        );
    }

    /// A name as it may be shown.
    pub(crate) fn quote(&self, name: &Spanned<String>) -> String {
        self.sources.quote(name.span, name)
    }

    pub(crate) fn scalar<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n Scalar> {
        match &node.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => {
                self.wrong_type(node, expected);
                None
            }
        }
    }

    pub(crate) fn map<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n Map> {
        match &node.value {
            Value::Map(map) => Some(map),
            _ => {
                self.wrong_type(node, expected);
                None
            }
        }
    }

    /// The value of the first of `keys` that is set.
    pub(crate) fn field<T: Decode<O>, O>(&mut self, map: &Map, keys: Keys, outer: &O) -> Option<T> {
        self.read(keys.find(map)?, keys, outer)
    }

    /// Like [`Self::field`], reporting its absence.
    pub(crate) fn required<T: Decode<O> + Default, O>(
        &mut self,
        map: &Map,
        keys: Keys,
        outer: &O,
    ) -> T {
        let Some(entry) = keys.find(map) else {
            let finding = self.error(
                "missing-key",
                map.head(),
                format!("`{}` is required here", keys.key),
            );
            if let (Some(finding), Some(empty)) = (finding, map.entry(keys.key)) {
                finding.label(empty.key_span, "this has no value");
            }
            return T::default();
        };
        self.read(entry, keys, outer).unwrap_or_default()
    }

    fn read<T: Decode<O>, O>(&mut self, entry: &Entry, keys: Keys, outer: &O) -> Option<T> {
        if keys.secret || keys.private {
            self.findings.secrets.push(entry.value.span);
        }
        if keys.deprecated {
            self.warning(
                "deprecated-key",
                entry.key_span,
                format!("`{}` is deprecated", entry.key),
            );
        }
        if keys.private {
            return T::decode(&self.handed_on(&entry.value), outer, self);
        }
        T::decode(&entry.value, outer, self)
    }

    /// What the file hands on as it is, as whoever it is read for may see it.
    pub(crate) fn handed_on(&self, node: &Rc<Node>) -> Rc<Node> {
        match self.mode {
            Mode::Daemon | Mode::Check => Rc::clone(node),
            Mode::Show => masked(node, self.sources),
        }
    }

    /// Reports every key that `known` does not know.
    pub(crate) fn unknown_keys(
        &mut self,
        map: &Map,
        known: impl Fn(&str) -> bool,
        all: impl Fn() -> Vec<&'static str>,
    ) {
        for entry in map.entries.iter().filter(|entry| !known(&entry.key)) {
            let all = if self.findings.is_full() {
                Vec::new()
            } else {
                all()
            };
            let suggestion = similar(&entry.key, all.iter().copied());
            // Without its colon, a secret is part of the key.
            let joined = entry.key.contains(char::is_whitespace) && sounds_secret(&entry.key);
            if joined {
                self.findings.secrets.push(entry.key_span);
            }
            if suggestion.as_deref().is_some_and(holds_secrets) {
                self.findings.secrets.push(entry.value.span);
            }
            let stray = suggestion.is_none() && self.sources.is_secure(entry.key_span);
            let message = if joined || stray {
                "unknown key".to_owned()
            } else {
                let key = self.sources.quote(entry.key_span, &entry.key);
                format!("unknown key `{key}`")
            };
            if let Some(finding) = self.lenient("unknown-key", entry.key_span, message) {
                finding.suggestion = suggestion;
                finding.allowed = all.into_iter().map(str::to_owned).collect();
            }
        }
    }

    /// Reads a mapping as section `S`.
    pub(crate) fn section<S: Section<O>, O>(&mut self, node: &Node, outer: &O) -> Option<S> {
        let map = self.map(node, "a mapping")?;
        self.unknown_keys(map, S::knows, || {
            S::keys().iter().map(|key| key.key).collect()
        });
        Some(S::fields(map, outer, self))
    }

    pub(crate) fn judge(
        &mut self,
        judgement: Judgement,
        code: &'static str,
        span: Span,
        message: String,
    ) -> Option<&mut Finding> {
        match judgement {
            Judgement::Strict => self.error(code, span, message),
            Judgement::Lenient => self.lenient(code, span, message),
        }
    }

    /// Reports two keys of which at most one may be set; says how many are.
    pub(crate) fn at_most_one(&mut self, map: &Map, keys: &[&str], judgement: Judgement) -> usize {
        let set: Vec<&Entry> = keys.iter().filter_map(|key| map.set(key)).collect();
        if let (Some(first), Some(second)) = (set.first(), set.get(1)) {
            let message = format!("`{}` and `{}` exclude each other", first.key, second.key);
            if let Some(finding) = self.judge(judgement, "exclusive-keys", second.key_span, message)
            {
                finding.label(first.key_span, "the other one is here");
            }
        }
        set.len()
    }

    pub(crate) fn exactly_one(&mut self, map: &Map, keys: &[&str], judgement: Judgement) {
        if self.at_most_one(map, keys, judgement) == 0 {
            let message = format!("one of {} is required here", listed(keys));
            self.judge(judgement, "missing-key", map.head(), message);
        }
    }

    pub(crate) fn at_least_one(&mut self, map: &Map, keys: &[&str], judgement: Judgement) {
        if !keys.iter().any(|key| map.set(key).is_some()) {
            let message = format!("at least one of {} is required here", listed(keys));
            self.judge(judgement, "missing-key", map.head(), message);
        }
    }
}

/// How a rule between keys is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Nodepool refuses to load such a file, or the keys are ours.
    Strict,
    /// Nodepool loads it, and fails later.
    Lenient,
}

fn listed(keys: &[&str]) -> String {
    keys.iter()
        .map(|key| format!("`{key}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The names under which a value may be found, and how it is treated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) key: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) secret: bool,
    pub(crate) private: bool,
    pub(crate) deprecated: bool,
}

impl Keys {
    fn find<'m>(&self, map: &'m Map) -> Option<&'m Entry> {
        std::iter::once(&self.key)
            .chain(self.aliases)
            .find_map(|key| map.set(key))
    }
}

/// A copy in which nothing is left that came from the environment or the secure file.
fn masked(node: &Node, sources: &Sources) -> Rc<Node> {
    let value = match &node.value {
        Value::Scalar(_) if sources.is_confidential(node.span) => Value::Scalar(Scalar {
            text: HIDDEN.to_owned(),
            kind: Kind::Text,
        }),
        Value::Scalar(scalar) => Value::Scalar(scalar.clone()),
        Value::List(items) => Value::List(items.iter().map(|item| masked(item, sources)).collect()),
        Value::Map(map) => {
            let entry = |entry: &Entry| Entry {
                key: if sources.is_confidential(entry.key_span) {
                    HIDDEN.to_owned()
                } else {
                    entry.key.clone()
                },
                key_span: entry.key_span,
                value: masked(&entry.value, sources),
            };
            Value::Map(Map {
                span: map.span,
                entries: map.entries.iter().map(entry).collect(),
            })
        }
    };
    let span = node.span;
    Rc::new(Node { span, value })
}

/// The candidate a person most likely meant, if any is near.
pub(crate) fn similar<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<String> {
    // Longer words than any name here are no typing error, and comparing them is slow.
    if word.len() > 100 {
        return None;
    }
    let normal = |text: &str| text.to_lowercase().replace('_', "-");
    let word = normal(word);
    candidates
        .take(2000)
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &normal(candidate)),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

impl Decode<()> for bool {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            Value::Scalar(Scalar {
                kind: Kind::Bool(value),
                ..
            }) => Some(*value),
            Value::Scalar(Scalar {
                kind: Kind::Int(value @ (0 | 1)),
                ..
            }) => {
                decoder
                    .lenient(
                        "loose-type",
                        node.span,
                        "a number stands for a boolean here",
                    )
                    .map(|finding| finding.help("write `true` or `false`"));
                Some(*value == 1)
            }
            _ => {
                decoder.wrong_type(node, "true or false");
                None
            }
        }
    }
}

impl Decode<()> for String {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let scalar = decoder.scalar(node, "text")?;
        if scalar.kind != Kind::Text {
            let message = format!(
                "{} stands for text here and is taken as written",
                node.description()
            );
            decoder
                .lenient("loose-type", node.span, message)
                .map(|finding| finding.help("put it in quotes"));
        }
        Some(scalar.text.clone())
    }
}

impl Decode<()> for i64 {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            Value::Scalar(Scalar {
                kind: Kind::Int(value),
                ..
            }) => {
                // Nothing that is counted here is near the ends.
                let end = if *value < 0 { Self::MIN } else { Self::MAX };
                Some(Self::try_from(*value).unwrap_or(end))
            }
            Value::Scalar(Scalar {
                kind: Kind::Float(value),
                ..
            }) if value.fract() == 0.0 && value.abs() < 1e15 => {
                decoder.lenient(
                    "loose-type",
                    node.span,
                    "a number with a fraction stands for a whole number here",
                );
                Some(*value as i64)
            }
            _ => {
                decoder.wrong_type(node, "a whole number");
                None
            }
        }
    }
}

impl Decode<()> for u64 {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let value = i64::decode(node, &(), decoder)?;
        let unsigned = Self::try_from(value).ok();
        if unsigned.is_none() {
            decoder.error("out-of-range", node.span, "this must not be negative");
        }
        unsigned
    }
}

impl Decode<()> for f64 {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            Value::Scalar(Scalar {
                kind: Kind::Int(value),
                ..
            }) => Some(*value as Self),
            Value::Scalar(Scalar {
                kind: Kind::Float(value),
                ..
            }) if value.is_finite() => Some(*value),
            _ => {
                decoder.wrong_type(node, "a number");
                None
            }
        }
    }
}

impl<T: Decode<O>, O> Decode<O> for Option<T> {
    fn decode(node: &Rc<Node>, outer: &O, decoder: &mut Decoder<'_>) -> Option<Self> {
        T::decode(node, outer, decoder).map(Some)
    }
}

impl<T: Decode<O>, O> Decode<O> for Vec<T> {
    fn decode(node: &Rc<Node>, outer: &O, decoder: &mut Decoder<'_>) -> Option<Self> {
        let Value::List(items) = &node.value else {
            decoder.wrong_type(node, "a list");
            return None;
        };
        Some(
            items
                .iter()
                .filter_map(|item| T::decode(item, outer, decoder))
                .collect(),
        )
    }
}

impl<T: Decode<()>> Decode<()> for Spanned<T> {
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        T::decode(node, &(), decoder).map(|value| Self {
            value,
            span: node.span,
        })
    }
}
