//! The files being read: their text, what interpolation did to it, and positions in it.
//!
//! Interpolation happens on the raw text, before YAML sees it, and may change its length. Positions
//! are therefore kept in the expanded text while parsing and mapped back to the file on disk when
//! a person is told about them. What was substituted may be a password, so the expanded text is
//! dropped after parsing and never shown: messages have the variable in its place, and a configuration
//! that is read to be looked at (`Mode::Show`) has a mask in all that is handed on.

use std::cell::OnceCell;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::values::Name;

/// Variables a file may refer to, in the order in which they are applied.
pub type Environment = Vec<(String, String)>;

/// Only variables with this prefix are interpolated.
pub(crate) const ENVIRONMENT_PREFIX: &str = "NODEPOOL_";

/// A place in one of the files, as byte offsets in its expanded text.
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

/// Text with `%(NAME)` replaced, and the way back.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    /// Ordered by `at`, never overlapping.
    substitutions: Vec<Substitution>,
}

#[derive(Debug, Clone)]
struct Substitution {
    /// Where the replacement is in the expanded text.
    at: Range<usize>,
    /// What it stands for in the original text.
    original: Range<usize>,
}

impl Expansion {
    /// Replaces every known `%(NAME)`, one variable after the other, so that a value may itself hold
    /// a token that a later variable replaces. Stops growing at `limit` bytes.
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

    /// The mapping after each of `matches` (in expanded text) became `length` bytes long.
    fn replace(&self, matches: &[Range<usize>], length: usize) -> Self {
        let mut substitutions: Vec<Substitution> = Vec::new();
        let mut old = self.substitutions.iter().peekable();
        let mut new = matches.iter().peekable();
        // Old and new intervals that touch the same text become one, which stands for all of it.
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

/// One file as it is on disk.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Nothing of this file's text is shown but names, and words that nearly are what belongs there.
    pub(crate) secure: bool,
    pub(crate) expansion: Expansion,
    lines: OnceCell<Vec<usize>>,
    is_ascii: bool,
}

/// A position for people: lines and columns count from 1, columns in characters.
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

    /// The bytes of the file that `span` stands for.
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

    /// The range of the line that holds `offset`, without its line end.
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

/// All files of one load; `Span::file` is the index.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: Vec<SourceFile>,
}

impl Sources {
    pub(crate) fn add(&mut self, file: SourceFile) -> u8 {
        self.files.push(file);
        u8::try_from(self.files.len() - 1).unwrap_or(u8::MAX)
    }

    pub(crate) fn file(&self, span: Span) -> Option<&SourceFile> {
        self.files.get(usize::from(span.file))
    }

    /// Whether any of the text at `span` came from the environment or from the secure file.
    pub(crate) fn is_confidential(&self, span: Span) -> bool {
        self.file(span)
            .is_some_and(|file| file.secure || file.expansion.touches(&span.range()))
    }

    pub(crate) fn is_secure(&self, span: Span) -> bool {
        self.file(span).is_some_and(|file| file.secure)
    }

    /// Those of `names` that may be suggested to somebody.
    pub(crate) fn public<'n>(
        &self,
        names: impl Iterator<Item = &'n Name>,
    ) -> impl Iterator<Item = &'n str> {
        names
            .filter(|name| !self.is_confidential(name.span))
            .map(|name| name.as_str())
    }

    /// `value`, which was read at `span`, as it may be shown: text from the environment appears as
    /// the token that stands for it in the file.
    pub(crate) fn quote(&self, span: Span, value: &str) -> String {
        const LONGEST: usize = 80;
        let shown = match self.file(span) {
            Some(file) if file.expansion.touches(&span.range()) => {
                let range = file.original(span);
                let written = file.text.get(range).unwrap_or_default();
                written.trim_matches(['"', '\''])
            }
            _ => value,
        };
        let line = shown.lines().next().unwrap_or_default();
        match line.char_indices().nth(LONGEST) {
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
    fn a_value_may_hold_a_token_of_a_later_variable() {
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
    fn an_empty_value_leaves_an_empty_place() {
        let (text, expansion) = expand("[%(NODEPOOL_A)]", &[("NODEPOOL_A", "")]);
        assert_eq!(text, "[]");
        assert_eq!(expansion.start_of(1), 14);
        assert_eq!(expansion.end_of(1), 1);
    }
}
