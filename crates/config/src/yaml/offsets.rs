//! Converts the parser's character counts to byte offsets.

use crate::source::Span;

pub(super) struct Offsets<'t> {
    pub(super) text: &'t str,
    file: u8,
    /// The byte offset of every `STEP`th character; empty if the text is ASCII.
    marks: Vec<usize>,
}

impl<'t> Offsets<'t> {
    const STEP: usize = 128;

    pub(super) fn new(text: &'t str, file: u8) -> Self {
        let marks = if text.is_ascii() {
            Vec::new()
        } else {
            text.char_indices()
                .step_by(Self::STEP)
                .map(|(at, _)| at)
                .collect()
        };
        Self { text, file, marks }
    }

    fn byte(&self, index: usize) -> usize {
        if self.marks.is_empty() {
            return index.min(self.text.len());
        }
        let Some(start) = self.marks.get(index / Self::STEP) else {
            return self.text.len();
        };
        let rest = self.text.get(*start..).unwrap_or_default();
        rest.char_indices()
            .nth(index % Self::STEP)
            .map_or(self.text.len(), |(at, _)| start + at)
    }

    pub(super) fn point(&self, index: usize) -> Span {
        let at = self.byte(index);
        Span::new(self.file, at..at)
    }

    pub(super) fn span(&self, span: &saphyr_parser::Span) -> Span {
        Span::new(
            self.file,
            self.byte(span.start.index())..self.byte(span.end.index()),
        )
    }
}
