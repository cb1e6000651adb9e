//! The source files: their text, variable interpolation, and positions.
//!
//! Variables are interpolated in the raw text, before YAML is parsed, which may change its length. Positions refer to
//! the expanded text while parsing and are mapped back to the file for messages. Substituted values may be secret, so
//! the expanded text is dropped after parsing and never shown; messages contain the variable's name instead, and
//! [`Mode::Show`](crate::Mode::Show) masks the values.

use std::cell::OnceCell;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::values::Name;

/// The variables that a file may refer to, in the order in which they are applied.
pub type Environment = Vec<(String, String)>;

/// Only variables with this prefix are interpolated.
pub(crate) const ENVIRONMENT_PREFIX: &str = "NODEPOOL_";

/// A range of bytes in the expanded text of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Span {
    pub(crate) file: u8,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn new(file: u8, range: Range<usize>) -> Self {
        let clamp = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self {
            file,
            start: clamp(range.start),
            end: clamp(range.end.max(range.start)),
        }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The substitutions of `%(NAME)` in a text, to map positions back.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    /// Sorted by `at`, disjoint.
    substitutions: Vec<Substitution>,
}

#[derive(Debug, Clone)]
struct Substitution {
    /// The range of the replacement in the expanded text.
    at: Range<usize>,
    /// The range that it replaces in the original text.
    original: Range<usize>,
}

impl Expansion {
    /// Replaces every known `%(NAME)`, one variable after the other, so that a value may contain a later variable.
    /// Stops when the text is longer than `limit` bytes.
    pub(crate) fn expand(text: &str, environment: &Environment, limit: usize) -> (String, Self) {
        let mut expansion = Self::default();
        let mut expanded = text.to_owned();
        for (name, value) in environment {
            if !name.starts_with(ENVIRONMENT_PREFIX) || expanded.len() > limit {
                continue;
            }
            let token = format!("%({name})");
            let matches: Vec<Range<usize>> = expanded
                .match_indices(&token)
                .map(|(at, found)| at..at + found.len())
                .collect();
            if matches.is_empty() {
                continue;
            }
            expansion = expansion.replace(&matches, value.len());
            expanded = expanded.replace(&token, value);
        }
        (expanded, expansion)
    }

    /// Returns the mapping after each of `matches` (in the expanded text) was replaced by `length` bytes.
    fn replace(&self, matches: &[Range<usize>], length: usize) -> Self {
        let mut substitutions: Vec<Substitution> = Vec::new();
        let mut old = self.substitutions.iter().peekable();
        let mut new = matches.iter().peekable();
        // Old and new ranges that overlap are merged.
        let mut shift: isize = 0;
        loop {
            let start = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(old), None) => old.at.start,
                (None, Some(new)) => new.start,
                (Some(old), Some(new)) => old.at.start.min(new.start),
            };
            let mut end = start;
            let mut growth: isize = 0;
            let mut first = true;
            loop {
                if let Some(next) = old
                    .peek()
                    .filter(|next| next.at.start < end || (first && next.at.start == start))
                {
                    end = end.max(next.at.end);
                    old.next();
                } else if let Some(next) = new
                    .peek()
                    .filter(|next| next.start < end || (first && next.start == start))
                {
                    end = end.max(next.end);
                    growth += signed(length) - signed(next.len());
                    new.next();
                } else {
                    break;
                }
                first = false;
            }
            substitutions.push(Substitution {
                at: start.saturating_add_signed(shift)..end.saturating_add_signed(shift + growth),
                original: self.start_of(start)..self.end_of(end),
            });
            shift += growth;
        }
        Self { substitutions }
    }

    fn before(&self, offset: usize) -> Option<&Substitution> {
        let index = self
            .substitutions
            .partition_point(|known| known.at.start <= offset);
        index
            .checked_sub(1)
            .and_then(|index| self.substitutions.get(index))
    }

    fn start_of(&self, offset: usize) -> usize {
        match self.before(offset) {
            Some(known) if offset < known.at.end => known.original.start,
            Some(known) => known.original.end + (offset - known.at.end),
            None => offset,
        }
    }

    fn end_of(&self, offset: usize) -> usize {
        match self.before(offset) {
            Some(known) if offset <= known.at.end && offset > known.at.start => known.original.end,
            Some(known) if offset == known.at.start => known.original.start,
            Some(known) => known.original.end + (offset - known.at.end),
            None => offset,
        }
    }

    fn touches(&self, range: &Range<usize>) -> bool {
        let index = self
            .substitutions
            .partition_point(|known| known.at.end <= range.start);
        self.substitutions
            .get(index)
            .is_some_and(|next| next.at.start < range.end)
    }
}

fn signed(length: usize) -> isize {
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// A file as it is on disk.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The secure file, whose text is not shown except for names and suggestions.
    pub(crate) secure: bool,
    pub(crate) expansion: Expansion,
    lines: OnceCell<Vec<usize>>,
    is_ascii: bool,
}

/// A position in messages: lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl SourceFile {
    pub(crate) fn new(path: &Path, text: String, secure: bool, expansion: Expansion) -> Self {
        Self {
            path: path.to_owned(),
            is_ascii: text.is_ascii(),
            text,
            secure,
            expansion,
            lines: OnceCell::new(),
        }
    }

    /// Returns the bytes of the file that `span` refers to.
    pub(crate) fn original(&self, span: Span) -> Range<usize> {
        let range = span.range();
        let start = self.floor(self.expansion.start_of(range.start));
        let end = self.floor(self.expansion.end_of(range.end).max(start));
        start..end
    }

    fn floor(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset.min(self.text.len()))
    }

    pub(crate) fn position(&self, offset: usize) -> Position {
        let (line, start) = self.line_of(offset);
        let column = if self.is_ascii {
            offset - start
        } else {
            self.text
                .get(start..offset)
                .map_or(0, |before| before.chars().count())
        };
        Position {
            line: line + 1,
            column: column + 1,
        }
    }

    /// Returns the range of the line that contains `offset`, without its line end.
    pub(crate) fn line_range(&self, offset: usize) -> Range<usize> {
        let (line, start) = self.line_of(offset);
        let end = self
            .lines()
            .get(line + 1)
            .copied()
            .unwrap_or(self.text.len());
        let text = self.text.get(start..end).unwrap_or_default();
        start..start + text.trim_end_matches(['\n', '\r']).len()
    }

    fn line_of(&self, offset: usize) -> (usize, usize) {
        let line = self
            .lines()
            .partition_point(|start| *start <= offset)
            .saturating_sub(1);
        (line, self.lines().get(line).copied().unwrap_or_default())
    }

    fn lines(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let ends = self
                .text
                .bytes()
                .enumerate()
                .filter(|(_, byte)| *byte == b'\n');
            std::iter::once(0)
                .chain(ends.map(|(at, _)| at + 1))
                .collect()
        })
    }
}

/// All files of one load, indexed by `Span::file`.
#[derive(Debug, Default)]
pub(crate) struct SourceFiles {
    files: Vec<SourceFile>,
}

impl SourceFiles {
    pub(crate) fn add(&mut self, file: SourceFile) -> u8 {
        self.files.push(file);
        u8::try_from(self.files.len() - 1).unwrap_or(u8::MAX)
    }

    pub(crate) fn file(&self, span: Span) -> Option<&SourceFile> {
        self.files.get(usize::from(span.file))
    }

    /// Returns whether any of the text at `span` comes from the environment or the secure file.
    pub(crate) fn is_confidential(&self, span: Span) -> bool {
        self.file(span)
            .is_some_and(|file| file.secure || file.expansion.touches(&span.range()))
    }

    pub(crate) fn is_secure(&self, span: Span) -> bool {
        self.file(span).is_some_and(|file| file.secure)
    }

    /// Returns those of `names` that may be suggested in messages.
    pub(crate) fn public<'n>(
        &self,
        names: impl Iterator<Item = &'n Name>,
    ) -> impl Iterator<Item = &'n str> {
        names
            .filter(|name| !self.is_confidential(name.span))
            .map(|name| name.as_str())
    }

    /// Returns `value`, which was read at `span`, as it may be shown: text from the environment is replaced by the
    /// variable's name.
    pub(crate) fn quote(&self, span: Span, value: &str) -> String {
        const MAX_LENGTH: usize = 80;
        let shown = match self.file(span) {
            Some(file) if file.expansion.touches(&span.range()) => {
                let range = file.original(span);
                let written = file.text.get(range).unwrap_or_default();
                written.trim_matches(['"', '\''])
            }
            _ => value,
        };
        let line = shown.lines().next().unwrap_or_default();
        match line.char_indices().nth(MAX_LENGTH) {
            Some((cut, _)) => format!("{}…", line.get(..cut).unwrap_or_default()),
            None => line.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str, variables: &[(&str, &str)]) -> (String, Expansion) {
        let environment = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        Expansion::expand(text, &environment, 1 << 20)
    }

    #[test]
    fn only_prefixed_names_are_replaced() {
        let (text, _) = expand(
            "%(HOME) %(NODEPOOL_A)s %(NODEPOOL_B)",
            &[("HOME", "x"), ("NODEPOOL_A", "1")],
        );
        assert_eq!(text, "%(HOME) 1s %(NODEPOOL_B)");
    }

    #[test]
    fn a_value_may_contain_a_later_variable() {
        let (text, expansion) = expand(
            "a %(NODEPOOL_A) b",
            &[
                ("NODEPOOL_A", "<%(NODEPOOL_B)>"),
                ("NODEPOOL_B", "long value"),
            ],
        );
        assert_eq!(text, "a <long value> b");
        assert_eq!(expansion.start_of(2), 2);
        assert_eq!(expansion.start_of(5), 2);
        assert_eq!(expansion.start_of(text.len()), 17);
    }

    #[test]
    fn positions_after_a_replacement_are_those_of_the_file() {
        let original = "x: %(NODEPOOL_A)\ny: %(NODEPOOL_A) # é\nz: 1\n";
        let (text, expansion) = expand(original, &[("NODEPOOL_A", "secret")]);
        let at = text.find('z').unwrap();
        assert_eq!(expansion.start_of(at), original.find('z').unwrap());
        let value = text.rfind("secret").unwrap();
        let file = SourceFile::new(Path::new("f"), original.into(), false, expansion);
        let span = Span::new(0, value..value + 6);
        assert_eq!(&original[file.original(span)], "%(NODEPOOL_A)");
        assert!(file.expansion.touches(&(value..value + 6)));
        assert!(!file.expansion.touches(&(at..at + 1)));
        assert_eq!(
            file.position(original.find('z').unwrap()),
            Position { line: 3, column: 1 }
        );
    }

    #[test]
    fn an_empty_value_maps_back() {
        let (text, expansion) = expand("[%(NODEPOOL_A)]", &[("NODEPOOL_A", "")]);
        assert_eq!(text, "[]");
        assert_eq!(expansion.start_of(1), 14);
        assert_eq!(expansion.end_of(1), 1);
    }
}
