//! Who may register and who may invoke which functions.
//!
//! A subject is the Common Name of a client certificate. Once a list of rights exists, a subject without an
//! entry may do nothing but look. Patterns are regular expressions that match at the start of a function
//! name, as in geard's ACL file.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::Regex;

/// What one subject may do.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    register: Option<Pattern>,
    invoke: Option<Pattern>,
    operate: bool,
}

/// A pattern as it was written, and compiled.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    fn new(text: &str) -> Result<Self, BadPattern> {
        let regex = Regex::new(&format!("^(?:{text})")).map_err(|source| BadPattern {
            pattern: text.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Self {
            text: text.to_owned(),
            regex,
        })
    }
}

/// A function pattern that is no regular expression.
#[derive(Debug, thiserror::Error)]
#[error("function pattern \"{pattern}\" is not a regular expression")]
pub struct BadPattern {
    pattern: String,
    source: Box<regex::Error>,
}

impl Rights {
    /// No rights at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// May take jobs of functions that match.
    pub fn register(mut self, pattern: &str) -> Result<Self, BadPattern> {
        self.register = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// May submit and cancel jobs of functions that match.
    pub fn invoke(mut self, pattern: &str) -> Result<Self, BadPattern> {
        self.invoke = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// May change the server's settings by admin commands.
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

    /// One line per subject, in geard's form.
    pub(super) fn listing(&self) -> String {
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
    fn an_alternative_cannot_escape_the_anchor() {
        let rights = Rights::none().invoke("a|b").unwrap();
        assert!(rights.may_invoke(b"b1") && !rights.may_invoke(b"xb"));
    }

    #[test]
    fn unknown_subjects_have_no_rights() {
        let list =
            AccessList::new().subject("builder", Rights::none().register(".*").unwrap().operate());
        assert!(list.rights_of(Some("builder")).may_register(b"x"));
        for stranger in [None, Some("other")] {
            let rights = list.rights_of(stranger);
            assert!(
                !rights.may_register(b"x") && !rights.may_invoke(b"x") && !rights.may_operate()
            );
        }
    }
}
