//! Renders diagnostics as text.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, DiagnosticLabel, Diagnostics, Severity, SourceRange};

/// The maximum number of rendered diagnostics; the others are counted.
const MAX_SHOWN: usize = 100;
const MAX_ALLOWED: usize = 40;

/// Renders all diagnostics in the style of compiler messages, with a summary line.
pub fn render(diagnostics: &Diagnostics, colour: bool) -> String {
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    }
    .decor_style(DecorStyle::Ascii);
    let mut text = String::new();
    for diagnostic in diagnostics.iter().take(MAX_SHOWN) {
        text.push_str(&renderer.render(&[group(diagnostic)]));
        text.push_str("\n\n");
    }
    let total = diagnostics.errors + diagnostics.warnings;
    if total > MAX_SHOWN {
        text.push_str(&format!("… and {} more\n", total - MAX_SHOWN));
    }
    if total > 0 {
        text.push_str(&summary(diagnostics));
        text.push('\n');
    }
    text
}

/// Returns a line such as `2 errors, 1 warning`.
pub(crate) fn summary(diagnostics: &Diagnostics) -> String {
    let count = |number: usize, word: &str| match number {
        1 => format!("1 {word}"),
        number => format!("{number} {word}s"),
    };
    match (diagnostics.errors, diagnostics.warnings) {
        (errors, 0) => count(errors, "error"),
        (0, warnings) => count(warnings, "warning"),
        (errors, warnings) => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    }
}

fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let file = diagnostic.file.to_string_lossy();
    let mut group = level
        .primary_title(diagnostic.message.as_str())
        .id(format!("{} {}", diagnostic.id, diagnostic.code))
        .elements(Vec::<Origin<'_>>::new());
    let (beside, elsewhere): (Vec<&DiagnosticLabel>, Vec<&DiagnosticLabel>) = diagnostic
        .labels
        .iter()
        .partition(|label| is_beside(&label.place, diagnostic.place.as_ref()));
    group = match &diagnostic.place {
        None => group.element(Origin::path(file.clone())),
        Some(place) => {
            let own = annotation(AnnotationKind::Primary, place, None);
            let others = beside.iter().map(|label| {
                annotation(AnnotationKind::Context, &label.place, Some(&label.message))
            });
            show(group, place, &file, std::iter::once(own).chain(others))
        }
    };
    for label in elsewhere {
        let own = annotation(AnnotationKind::Context, &label.place, Some(&label.message));
        group = show(group, &label.place, &file, std::iter::once(own));
    }
    if let Some(help) = &diagnostic.help {
        group = group.element(Level::HELP.message(help.as_str()));
    }
    if let Some(suggestion) = &diagnostic.suggestion {
        group = group.element(Level::HELP.message(format!("did you mean `{suggestion}`?")));
    }
    if !diagnostic.allowed.is_empty() {
        let mut allowed = diagnostic
            .allowed
            .iter()
            .take(MAX_ALLOWED)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        if diagnostic.allowed.len() > MAX_ALLOWED {
            allowed.push_str(", …");
        }
        group = group.element(Level::NOTE.message(format!("allowed here: {allowed}")));
    }
    group
}

/// Returns whether a label is on the same line as the diagnostic.
fn is_beside(label: &SourceRange, place: Option<&SourceRange>) -> bool {
    place.is_some_and(|place| place.line == label.line && place.source_line == label.source_line)
}

fn annotation<'d>(
    kind: AnnotationKind,
    place: &SourceRange,
    label: Option<&'d str>,
) -> Annotation<'d> {
    kind.span(place.marked.clone()).label(label)
}

fn show<'d>(
    group: Group<'d>,
    place: &'d SourceRange,
    file: &str,
    annotations: impl Iterator<Item = Annotation<'d>>,
) -> Group<'d> {
    match &place.source_line {
        None => group.element(
            Origin::path(file.to_owned())
                .line(place.line)
                .char_column(place.column),
        ),
        Some(line) => group.element(
            Snippet::source(line.as_str())
                .path(file.to_owned())
                .line_start(place.line)
                .annotations(annotations),
        ),
    }
}
