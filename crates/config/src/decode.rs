//! Decodes the YAML tree into typed values and collects all problems.
//!
//! An invalid value is reported and replaced by its default, so that one mistake hides no other. A configuration with
//! errors is never returned, so these defaults are never used.

use std::rc::Rc;

use crate::diagnostic::{Finding, Findings, Severity};
use crate::excerpt::{HIDDEN, holds_secrets, looks_secret};
use crate::section::Section;
use crate::source::{SourceFiles, Span};
use crate::values::Spanned;
use crate::yaml::{Map, Scalar, ScalarType, YamlEntry, YamlNode, YamlValue};

/// How strictly a file is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Problems that Nodepool's daemons ignore are warnings.
    Daemon,
    /// The same problems are errors, as for `config-validate`.
    Check,
    /// As for daemons, with all values from the environment and the secure file masked. The result is for display only.
    Show,
}

/// A type that can be decoded from a node. `Outer` provides its inherited defaults.
pub(crate) trait Decode<Outer>: Sized {
    fn decode(node: &Rc<YamlNode>, outer: &Outer, decoder: &mut Decoder<'_>) -> Option<Self>;
}

/// Collects findings, with the context needed to report them.
pub(crate) struct Decoder<'s> {
    pub(crate) sources: &'s SourceFiles,
    pub(crate) findings: Findings,
    mode: Mode,
}

impl<'s> Decoder<'s> {
    pub(crate) fn new(sources: &'s SourceFiles, mode: Mode) -> Self {
        Self {
            sources,
            findings: Findings::default(),
            mode,
        }
    }

    /// Reports an error in any mode.
    pub(crate) fn error(
        &mut self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> Option<&mut Finding> {
        self.report(Severity::Error, code, span, message.into())
    }

    /// Reports something that Nodepool's daemons accept: a warning, or an error in [`Mode::Check`].
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

    /// Reports a warning in any mode.
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

    pub(crate) fn wrong_type(&mut self, node: &YamlNode, expected: &str) {
        self.error(
            "wrong-type",
            node.span,
            format!("expected {expected}, found {}", node.description()),
        );
    }

    /// Returns a name as it may be shown in messages.
    pub(crate) fn quote(&self, name: &Spanned<String>) -> String {
        self.sources.quote(name.span, name)
    }

    pub(crate) fn scalar<'n>(&mut self, node: &'n YamlNode, expected: &str) -> Option<&'n Scalar> {
        match &node.value {
            YamlValue::Scalar(scalar) => Some(scalar),
            _ => {
                self.wrong_type(node, expected);
                None
            }
        }
    }

    pub(crate) fn map<'n>(&mut self, node: &'n YamlNode, expected: &str) -> Option<&'n Map> {
        match &node.value {
            YamlValue::Map(map) => Some(map),
            _ => {
                self.wrong_type(node, expected);
                None
            }
        }
    }

    /// Decodes the value of the first of `keys` that is set.
    pub(crate) fn field<T: Decode<O>, O>(
        &mut self,
        map: &Map,
        keys: KeySpec,
        outer: &O,
    ) -> Option<T> {
        self.read(keys.find(map)?, keys, outer)
    }

    /// Like [`Self::field`], but reports a missing key.
    pub(crate) fn required<T: Decode<O> + Default, O>(
        &mut self,
        map: &Map,
        keys: KeySpec,
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

    fn read<T: Decode<O>, O>(&mut self, entry: &YamlEntry, keys: KeySpec, outer: &O) -> Option<T> {
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
            return T::decode(&self.passed_through(&entry.value), outer, self);
        }
        T::decode(&entry.value, outer, self)
    }

    /// Returns free-form data; masked for display.
    pub(crate) fn passed_through(&self, node: &Rc<YamlNode>) -> Rc<YamlNode> {
        match self.mode {
            Mode::Daemon | Mode::Check => Rc::clone(node),
            Mode::Show => mask(node, self.sources),
        }
    }

    /// Reports every key that is not `known`.
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
            // If the colon is missing, the key contains a secret.
            let joined = entry.key.contains(char::is_whitespace) && looks_secret(&entry.key);
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

    /// Decodes a mapping as section `S`.
    pub(crate) fn section<S: Section<O>, O>(&mut self, node: &YamlNode, outer: &O) -> Option<S> {
        let map = self.map(node, "a mapping")?;
        self.unknown_keys(map, S::knows, || {
            S::keys().iter().map(|key| key.key).collect()
        });
        Some(S::fields(map, outer, self))
    }

    pub(crate) fn report_with(
        &mut self,
        strictness: Strictness,
        code: &'static str,
        span: Span,
        message: String,
    ) -> Option<&mut Finding> {
        match strictness {
            Strictness::Strict => self.error(code, span, message),
            Strictness::Lenient => self.lenient(code, span, message),
        }
    }

    /// Reports two of `keys` that are both set. Returns how many are set.
    pub(crate) fn at_most_one(
        &mut self,
        map: &Map,
        keys: &[&str],
        strictness: Strictness,
    ) -> usize {
        let set: Vec<&YamlEntry> = keys.iter().filter_map(|key| map.set(key)).collect();
        if let (Some(first), Some(second)) = (set.first(), set.get(1)) {
            let message = format!("`{}` and `{}` exclude each other", first.key, second.key);
            if let Some(finding) =
                self.report_with(strictness, "exclusive-keys", second.key_span, message)
            {
                finding.label(first.key_span, "the other one is here");
            }
        }
        set.len()
    }

    pub(crate) fn exactly_one(&mut self, map: &Map, keys: &[&str], strictness: Strictness) {
        if self.at_most_one(map, keys, strictness) == 0 {
            let message = format!("one of {} is required here", quoted_list(keys));
            self.report_with(strictness, "missing-key", map.head(), message);
        }
    }

    pub(crate) fn at_least_one(&mut self, map: &Map, keys: &[&str], strictness: Strictness) {
        if !keys.iter().any(|key| map.set(key).is_some()) {
            let message = format!("at least one of {} is required here", quoted_list(keys));
            self.report_with(strictness, "missing-key", map.head(), message);
        }
    }
}

/// How strictly a rule between keys is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Always an error: Nodepool refuses to load such a file, or the keys are not Nodepool's.
    Strict,
    /// An error in [`Mode::Check`] only: Nodepool loads the file and fails later.
    Lenient,
}

fn quoted_list(keys: &[&str]) -> String {
    keys.iter()
        .map(|key| format!("`{key}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The names of a key, and how its value is treated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySpec {
    pub(crate) key: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) secret: bool,
    pub(crate) private: bool,
    pub(crate) deprecated: bool,
}

impl KeySpec {
    fn find<'m>(&self, map: &'m Map) -> Option<&'m YamlEntry> {
        std::iter::once(&self.key)
            .chain(self.aliases)
            .find_map(|key| map.set(key))
    }
}

/// Returns a copy in which values from the environment and the secure file are masked.
fn mask(node: &YamlNode, sources: &SourceFiles) -> Rc<YamlNode> {
    let value = match &node.value {
        YamlValue::Scalar(_) if sources.is_confidential(node.span) => YamlValue::Scalar(Scalar {
            text: HIDDEN.to_owned(),
            kind: ScalarType::Text,
        }),
        YamlValue::Scalar(scalar) => YamlValue::Scalar(scalar.clone()),
        YamlValue::List(items) => {
            YamlValue::List(items.iter().map(|item| mask(item, sources)).collect())
        }
        YamlValue::Map(map) => {
            let entry = |entry: &YamlEntry| YamlEntry {
                key: if sources.is_confidential(entry.key_span) {
                    HIDDEN.to_owned()
                } else {
                    entry.key.clone()
                },
                key_span: entry.key_span,
                value: mask(&entry.value, sources),
            };
            YamlValue::Map(Map {
                span: map.span,
                entries: map.entries.iter().map(entry).collect(),
            })
        }
    };
    let span = node.span;
    Rc::new(YamlNode { span, value })
}

/// Returns the candidate most similar to `word`, if any is close enough.
pub(crate) fn similar<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<String> {
    // Names are shorter than this, and comparing long words is slow.
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
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Bool(value),
                ..
            }) => Some(*value),
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Int(value @ (0 | 1)),
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
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let scalar = decoder.scalar(node, "text")?;
        if scalar.kind != ScalarType::Text {
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
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Int(value),
                ..
            }) => {
                // Saturates, because no value here is near the limits.
                let end = if *value < 0 { Self::MIN } else { Self::MAX };
                Some(Self::try_from(*value).unwrap_or(end))
            }
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Float(value),
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
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let value = i64::decode(node, &(), decoder)?;
        let unsigned = Self::try_from(value).ok();
        if unsigned.is_none() {
            decoder.error("out-of-range", node.span, "this must not be negative");
        }
        unsigned
    }
}

impl Decode<()> for f64 {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Int(value),
                ..
            }) => Some(*value as Self),
            YamlValue::Scalar(Scalar {
                kind: ScalarType::Float(value),
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
    fn decode(node: &Rc<YamlNode>, outer: &O, decoder: &mut Decoder<'_>) -> Option<Self> {
        T::decode(node, outer, decoder).map(Some)
    }
}

impl<T: Decode<O>, O> Decode<O> for Vec<T> {
    fn decode(node: &Rc<YamlNode>, outer: &O, decoder: &mut Decoder<'_>) -> Option<Self> {
        let YamlValue::List(items) = &node.value else {
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
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        T::decode(node, &(), decoder).map(|value| Self {
            value,
            span: node.span,
        })
    }
}
