use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;

const PAGE_HEAD: &str = "\
# Errors

What goes wrong has a code. It is in brackets in the messages of commands and of `nodeyard config check`, in front of the reason
of a build, an import or a launch that failed, and in the field `code` of a daemon's log. `nodeyard errors NY0301` prints what
this page says about a code. Answers of the HTTP API have a `type` instead ([api.md](api.md)).

This page is generated (`make generate`).
";

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns docs/errors.md.
fn page() -> String {
    let mut page = String::from(PAGE_HEAD);
    let mut area = "";
    for code in ErrorCode::ALL {
        if code.area() != area {
            area = code.area();
            page.push_str(&format!(
                "\n## {area}\n\n| code | name | cause | remedy |\n|---|---|---|---|\n"
            ));
        }
        let (name, cause, remedy) = (code.name(), code.cause(), code.remedy());
        page.push_str(&format!("| {code} | `{name}` | {cause} | {remedy} |\n"));
    }
    page
}

/// Reads the sources below `dir` up to their unit tests, without this directory.
fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let skipped = ["tests", "error_code", "benches", "examples"];
            if !skipped.iter().any(|name| path.ends_with(name)) {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next();
            found.push(code.unwrap_or_default().to_owned());
        }
    }
}

fn sources_of(dirs: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for dir in dirs {
        sources(&checkout().join(dir), &mut found);
    }
    found
}

#[test]
fn the_checked_in_page_is_the_generated_one() {
    let path = checkout().join("docs/errors.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page(),
        "docs/errors.md differs from the table of error codes; `make generate` writes it again"
    );
}

#[test]
fn ids_and_names_are_unique_and_in_order() {
    let ids: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.id()).collect();
    assert!(ids.is_sorted_by(|before, after| before < after), "{ids:?}");
    let names: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), ErrorCode::ALL.len());
    for code in ErrorCode::ALL {
        let digits = code.id().strip_prefix("NY").unwrap();
        assert!(digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()));
        assert_eq!(code.id().to_lowercase().parse(), Ok(*code));
        assert_eq!(code.name().parse(), Ok(*code));
        for text in [code.cause(), code.remedy()] {
            assert!(text.ends_with('.') && !text.contains('|'), "{code}: {text}");
        }
    }
    assert!("NY9999".parse::<ErrorCode>().is_err());
}

#[test]
fn each_area_has_a_hundred_of_its_own() {
    let pairs = ErrorCode::ALL
        .iter()
        .map(|code| (&code.id()[..4], code.area()));
    let pairs: BTreeSet<(&str, &str)> = pairs.collect();
    let hundreds: BTreeSet<&str> = pairs.iter().map(|(hundred, _)| *hundred).collect();
    let areas: BTreeSet<&str> = pairs.iter().map(|(_, area)| *area).collect();
    assert_eq!(hundreds.len(), pairs.len(), "{pairs:?}");
    assert_eq!(areas.len(), pairs.len(), "{pairs:?}");
}

/// The reader of the configuration knows its codes by their names.
#[test]
fn every_code_is_used() {
    let sources = sources_of(&["crates", "drivers"]);
    let config = sources_of(&["crates/config/src"]);
    let is_used = |code: &&ErrorCode| {
        let named = format!("\"{}\"", code.name());
        let ident = format!("ErrorCode::{code:?}");
        let uses = |text: &String| {
            let mut places = text.match_indices(&ident);
            places.any(|(at, _)| {
                let next = text[at + ident.len()..].chars().next();
                !next.is_some_and(char::is_alphanumeric)
            })
        };
        config.iter().any(|text| text.contains(&named)) || sources.iter().any(uses)
    };
    let unused: Vec<&ErrorCode> = ErrorCode::ALL.iter().filter(|c| !is_used(c)).collect();
    assert!(
        unused.is_empty(),
        "nothing reports these codes; remove them from the table, or attach them: {unused:?}"
    );
}

#[test]
fn every_code_of_the_configuration_is_in_the_table() {
    let mut found = BTreeSet::new();
    for text in sources_of(&["crates/config/src"]) {
        for call in [
            ".error(",
            ".lenient(",
            ".warning(",
            "Problem::new(",
            "of_file(",
        ] {
            for (at, _) in text.match_indices(call) {
                let argument = text[at + call.len()..].trim_start();
                let name = argument
                    .strip_prefix('"')
                    .and_then(|rest| rest.split('"').next());
                found.extend(name.map(str::to_owned));
            }
        }
    }
    assert!(found.len() > 30, "only {found:?} were found");
    let missing: Vec<&String> = found
        .iter()
        .filter(|name| ErrorCode::named(name).is_none())
        .collect();
    assert!(missing.is_empty(), "add to the table: {missing:?}");
}
