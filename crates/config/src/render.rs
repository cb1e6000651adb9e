//! Diagnostics for people.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Severity};

/// More than this is a wall nobody reads; the rest is counted.
const MAX_SHOWN: usize = 100;
const MAX_ALLOWED: usize = 40;

/// All diagnostics in the form of compiler messages, with a closing count.
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

/// One line: `2 errors, 1 warning`.
pub fn summary(diagnostics: &Diagnostics) -> String {
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
        .id(diagnostic.code)
        .elements(Vec::<Origin<'_>>::new());
    group = match &diagnostic.place {
        None => group.element(Origin::path(file.clone())),
        Some(place) => mark(group, place, &file, AnnotationKind::Primary, None),
    };
    for label in &diagnostic.labels {
        group = mark(
            group,
            &label.place,
            &file,
            AnnotationKind::Context,
            Some(&label.message),
        );
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

fn mark<'d>(
    group: Group<'d>,
    place: &'d Place,
    file: &str,
    kind: AnnotationKind,
    label: Option<&'d str>,
) -> Group<'d> {
    match &place.source_line {
        None => group.element(
            Origin::path(file.to_owned())
                .line(place.line)
                .char_column(place.column),
        ),
        Some(line) => {
            let annotation = kind.span(place.marked.clone()).label(label);
            group.element(
                Snippet::source(line.as_str())
                    .path(file.to_owned())
                    .line_start(place.line)
                    .annotation(annotation),
            )
        }
    }
}
