//! Access control: which client certificates may register, invoke or administer which functions.
//!
//! A subject is the Common Name of a client certificate. With an [`AccessList`], a subject without an entry has
//! read-only access. Patterns are regular expressions anchored at the start of a function name, as in geard's ACL file.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::Regex;

/// The access rights of one subject.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    register: Option<Pattern>,
    invoke: Option<Pattern>,
    operate: bool,
}

/// A pattern as configured and compiled.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    fn new(text: &str) -> Result<Self, InvalidPattern> {
        let regex = Regex::new(&format!("^(?:{text})")).map_err(|source| InvalidPattern {
            pattern: text.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Self {
            text: text.to_owned(),
            regex,
        })
    }
}

/// A function pattern that is not a valid regular expression.
#[derive(Debug, thiserror::Error)]
#[error("invalid function pattern \"{pattern}\": not a regular expression")]
pub struct InvalidPattern {
    pattern: String,
    source: Box<regex::Error>,
}

impl Rights {
    /// Returns no rights.
    pub fn none() -> Self {
        Self::default()
    }

    /// Grants running jobs of functions that match.
    pub fn register(mut self, pattern: &str) -> Result<Self, InvalidPattern> {
        self.register = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Grants submitting and cancelling jobs of functions that match.
    pub fn invoke(mut self, pattern: &str) -> Result<Self, InvalidPattern> {
        self.invoke = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Grants changing the server's settings by admin commands.
    #[must_use]
    pub fn operate(mut self) -> Self {
        self.operate = true;
        self
    }

    pub(super) fn may_register(&self, function: &[u8]) -> bool {
        self.register
            .as_ref()
            .is_some_and(|pattern| pattern.regex.is_match(function))
    }

    pub(super) fn may_invoke(&self, function: &[u8]) -> bool {
        self.invoke
            .as_ref()
            .is_some_and(|pattern| pattern.regex.is_match(function))
    }

    pub(super) fn may_operate(&self) -> bool {
        self.operate
    }
}

/// The rights of every known subject.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    subjects: BTreeMap<String, Arc<Rights>>,
}

impl AccessList {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rights of the clients whose certificate names `subject`.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>, rights: Rights) -> Self {
        self.subjects.insert(subject.into(), Arc::new(rights));
        self
    }

    pub(super) fn rights_of(&self, subject: Option<&str>) -> Arc<Rights> {
        subject
            .and_then(|name| self.subjects.get(name))
            .cloned()
            .unwrap_or_default()
    }

    /// Formats one line per subject, in geard's format.
    pub(super) fn to_text(&self) -> String {
        let text = |pattern: &Option<Pattern>| {
            pattern
                .as_ref()
                .map_or("None".to_owned(), |p| p.text.clone())
        };
        self.subjects
            .iter()
            .map(|(subject, rights)| {
                let grant = if rights.operate { "True" } else { "False" };
                let (register, invoke) = (text(&rights.register), text(&rights.invoke));
                format!("{subject}\tregister={register}\tinvoke={invoke}\tgrant={grant}\n")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_at_the_start_only() {
        let rights = Rights::none().register("image-(build|upload):").unwrap();
        assert!(rights.may_register(b"image-build:debian"));
        assert!(!rights.may_register(b"x-image-build:debian"));
        assert!(!rights.may_register(b"image-delete:1"));
        assert!(!rights.may_invoke(b"image-build:debian"));
    }

    #[test]
    fn alternatives_are_anchored() {
        let rights = Rights::none().invoke("a|b").unwrap();
        assert!(rights.may_invoke(b"b1") && !rights.may_invoke(b"xb"));
    }

    #[test]
    fn unknown_subjects_have_no_rights() {
        let list =
            AccessList::new().subject("builder", Rights::none().register(".*").unwrap().operate());
        assert!(list.rights_of(Some("builder")).may_register(b"x"));
        for unknown in [None, Some("other")] {
            let rights = list.rights_of(unknown);
            assert!(
                !rights.may_register(b"x") && !rights.may_invoke(b"x") && !rights.may_operate()
            );
        }
    }
}
