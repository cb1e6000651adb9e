//! Tests that the programs accept every command line in the README and the book.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{Nodepool, NodepoolBuilder, NodepoolLauncher, Nodeyard};
use crate::program::ProgramName;

/// A call of one of the programs in a page.
struct DocumentedCall {
    place: String,
    words: Vec<String>,
    /// In running text, required arguments may be missing.
    in_text: bool,
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Splits a command into words, up to shell operators.
fn words(line: &str) -> Option<Vec<String>> {
    let words = shlex::split(line)?.into_iter();
    let words: Vec<String> = words
        .take_while(|word| !["&", "&&", "|", ">", "<", ";"].contains(&word.as_str()))
        .collect();
    let programs = [ProgramName::Nodeyard]
        .into_iter()
        .chain(ProgramName::LINKS);
    let ours = programs
        .into_iter()
        .any(|program| words.first().is_some_and(|name| name == program.name()));
    (ours && words.len() > 1).then_some(words)
}

fn calls(page: &Path, text: &str, found: &mut Vec<DocumentedCall>) {
    let mut fenced = false;
    let joined = text.replace("\\\n", " ");
    for (number, line) in joined.lines().enumerate() {
        let place = format!("{}, about line {}", page.display(), number + 1);
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced || line.starts_with("    ") {
            let line = line.trim_start();
            let line = line.strip_prefix("$ ").unwrap_or(line);
            found.extend(words(line).map(|words| DocumentedCall {
                place,
                words,
                in_text: false,
            }));
            continue;
        }
        // Alternatives and ellipses are not literal.
        let spans = line.split('`').skip(1).step_by(2);
        for span in
            spans.filter(|span| !span.contains(['|', '[', '…', '*']) && !span.contains("..."))
        {
            let place = place.clone();
            found.extend(words(span).map(|words| DocumentedCall {
                place,
                words,
                in_text: true,
            }));
        }
    }
}

fn understood<P: Parser>(call: &DocumentedCall) -> Result<(), String> {
    let Err(error) = P::try_parse_from(&call.words) else {
        return Ok(());
    };
    // A placeholder instead of a value.
    if error.kind() == ErrorKind::ValueValidation {
        return Ok(());
    }
    let incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if incomplete && (call.in_text || !error.use_stderr()) {
        return Ok(());
    }
    Err(format!("{}: {}\n{error}", call.place, call.words.join(" ")))
}

#[test]
fn documented_commands_are_valid() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![checkout.join("README.md")];
    pages(&checkout.join("docs"), &mut files);
    let mut found = Vec::new();
    for file in &files {
        calls(file, &fs::read_to_string(file).unwrap(), &mut found);
    }
    assert!(found.len() > 80, "only {} were found", found.len());
    let wrong: Vec<String> = found
        .iter()
        .filter_map(|call| {
            match ProgramName::from_argv0(call.words.first().map(AsRef::as_ref)) {
                ProgramName::Nodeyard => understood::<Nodeyard>(call),
                ProgramName::Nodepool => understood::<Nodepool>(call),
                ProgramName::NodepoolLauncher => understood::<NodepoolLauncher>(call),
                ProgramName::NodepoolBuilder => understood::<NodepoolBuilder>(call),
            }
            .err()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
