//! Diagnostics: problems in a file, as data.
//!
//! A [`Finding`] is collected while reading and refers to positions. A [`Diagnostic`] leaves the crate: it contains the
//! lines it shows, with secrets masked, so printing and storing it is safe.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use nodeyard_model::ErrorCode;
use serde::Serialize;

use crate::excerpt::Excerpt;
use crate::source::{Position, SourceFile, SourceFiles, Span};

/// Findings beyond this number are counted but not kept.
const MAX_FINDINGS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

/// An error or a warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Stable, in kebab case: `unknown-key`, `missing-key`, …
    pub code: &'static str,
    /// The same as docs/errors.md has it: `NY0101`.
    pub id: &'static str,
    pub severity: Severity,
    pub message: String,
    /// The file; `place` is absent if the whole file is meant.
    pub file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<SourceRange>,
    /// Related places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<DiagnosticLabel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The values that are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// The value that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// A range within one line. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceRange {
    pub line: usize,
    pub column: usize,
    pub end_column: usize,
    /// The line in the file, with secrets masked; absent for the secure file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_line: Option<String>,
    /// The bytes of `source_line` to mark.
    #[serde(skip)]
    pub(crate) marked: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiagnosticLabel {
    pub message: String,
    #[serde(flatten)]
    pub place: SourceRange,
}

/// All diagnostics of one load, sorted by position.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diagnostics {
    pub diagnostics: Vec<Diagnostic>,
    pub errors: usize,
    pub warnings: usize,
}

impl Diagnostics {
    pub fn is_empty(&self) -> bool {
        self.errors + self.warnings == 0
    }

    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.diagnostics.iter()
    }

    pub(crate) fn of_file(diagnostic: Diagnostic) -> Self {
        Self {
            diagnostics: vec![diagnostic],
            errors: 1,
            warnings: 0,
        }
    }
}

impl<'d> IntoIterator for &'d Diagnostics {
    type Item = &'d Diagnostic;
    type IntoIter = std::slice::Iter<'d, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A problem found while reading.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) labels: Vec<(Span, String)>,
    pub(crate) help: Option<String>,
    pub(crate) allowed: Vec<String>,
    pub(crate) suggestion: Option<String>,
}

impl Finding {
    pub(crate) fn label(&mut self, span: Span, message: impl Into<String>) -> &mut Self {
        self.labels.push((span, message.into()));
        self
    }

    pub(crate) fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = Some(help.into());
        self
    }
}

/// Collects findings: keeps the first thousand and counts all.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    /// Findings seen so far: shared nodes are read once per alias, but their problems are reported once.
    seen: HashSet<(Span, &'static str, String)>,
    errors: usize,
    warnings: usize,
    pub(crate) secrets: Vec<Span>,
}

impl Findings {
    /// Adds a finding and returns it for details, unless it is a duplicate or there are too many.
    pub(crate) fn add(&mut self, finding: Finding) -> Option<&mut Finding> {
        if self.kept.len() < MAX_FINDINGS
            && !self
                .seen
                .insert((finding.span, finding.code, finding.message.clone()))
        {
            return None;
        }
        match finding.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.kept.len() >= MAX_FINDINGS {
            return None;
        }
        self.kept.push(finding);
        self.kept.last_mut()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.kept.len() >= MAX_FINDINGS
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    pub(crate) fn finish(mut self, sources: &SourceFiles) -> Diagnostics {
        self.kept
            .sort_by_key(|finding| (finding.span.file, finding.span.start));
        let secrets = self.secrets;
        let diagnostics = self
            .kept
            .into_iter()
            .map(|finding| finding.locate(sources, &secrets))
            .collect();
        Diagnostics {
            diagnostics,
            errors: self.errors,
            warnings: self.warnings,
        }
    }
}

impl Finding {
    fn locate(self, sources: &SourceFiles, secrets: &[Span]) -> Diagnostic {
        let file = sources.file(self.span);
        let labels = self.labels.into_iter().filter_map(|(span, message)| {
            let place = place(sources.file(span)?, span, secrets);
            Some(DiagnosticLabel { message, place })
        });
        Diagnostic {
            code: self.code,
            id: id(self.code),
            severity: self.severity,
            message: self.message,
            file: file.map(|file| file.path.clone()).unwrap_or_default(),
            place: file.map(|file| place(file, self.span, secrets)),
            labels: labels.collect(),
            help: self.help,
            allowed: self.allowed,
            suggestion: self.suggestion,
        }
    }
}

/// Empty for none of the table.
pub(crate) fn id(code: &str) -> &'static str {
    ErrorCode::named(code).map_or("", ErrorCode::id)
}

fn place(file: &SourceFile, span: Span, secrets: &[Span]) -> SourceRange {
    let range = file.original(span);
    let line = file.line_range(range.start);
    // A span may cover many lines; the first is marked.
    let end = range.end.clamp(range.start, line.end.max(range.start));
    let Position {
        line: number,
        column,
    } = file.position(range.start);
    let end_column = file.position(end).column;
    let mut place = SourceRange {
        line: number,
        column,
        end_column,
        source_line: None,
        marked: 0..0,
    };
    if file.secure {
        return place;
    }
    let text = file.text.get(line.clone()).unwrap_or_default();
    let known = secrets
        .iter()
        .filter(|secret| secret.file == span.file)
        .map(|secret| file.original(*secret))
        .filter(|secret| secret.start < line.end && secret.end > line.start)
        .map(|secret| {
            secret.start.max(line.start) - line.start..secret.end.min(line.end) - line.start
        });
    let marked = range.start - line.start..end - line.start;
    let excerpt = Excerpt::new(text, known.collect(), marked);
    place.source_line = Some(excerpt.text);
    place.marked = excerpt.marked;
    place
}
