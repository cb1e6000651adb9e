//! Valid files, and files with every kind of mistake.

use std::collections::BTreeSet;
use std::fs;

use crate::support::{assert_golden, files, load_file};
use nodeyard_config::{Mode, render, schema};
use nodeyard_testbeds::checkout;

#[test]
fn good_files_are_accepted_and_resolve_as_recorded() {
    for path in files("good") {
        let (config, diagnostics) = load_file(&path, Mode::Check);
        let mut findings = diagnostics.diagnostics.iter();
        // What nobody serves yet is right all the same.
        assert!(
            findings.all(|finding| finding.code == "no-driver-yet") && !diagnostics.has_errors(),
            "{}",
            render(&diagnostics, false)
        );
        let shown = serde_json::to_string_pretty(&config.unwrap()).unwrap();
        assert!(
            !shown.contains("s3cr3t"),
            "{} shows a secret",
            path.display()
        );
        assert_golden(&path.with_extension("json"), &(shown + "\n"));
    }
}

#[test]
fn bad_files_are_explained_as_recorded() {
    for path in files("bad") {
        let (config, diagnostics) = load_file(&path, Mode::Check);
        assert!(config.is_none(), "{} is accepted", path.display());
        assert!(diagnostics.has_errors(), "{} has no error", path.display());
        for finding in &diagnostics.diagnostics {
            assert!(!finding.id.is_empty(), "{} has no number", finding.code);
        }
        let rendered = render(&diagnostics, false);
        let json = serde_json::to_string(&diagnostics).unwrap();
        for text in [&rendered, &json] {
            for secret in ["s3cr3t", "hunter2"] {
                assert!(
                    !text.contains(secret),
                    "{} prints a secret:\n{text}",
                    path.display()
                );
            }
        }
        assert_golden(&path.with_extension("txt"), &rendered);
    }
}

#[test]
fn problems_that_daemons_ignore_are_warnings() {
    for name in ["unknown-keys", "duplicate-keys", "loose-types", "tolerated"] {
        let path = crate::support::corpus("bad")
            .join(name)
            .with_extension("yaml");
        let (config, diagnostics) = load_file(&path, Mode::Daemon);
        assert!(config.is_some(), "{name}: {}", render(&diagnostics, false));
        assert!(diagnostics.warnings > 0);
    }
}

/// A key nobody writes in a test may be read wrongly for years.
#[test]
fn every_key_is_used_by_a_good_file() {
    let mut declared = BTreeSet::new();
    collect_keys(&schema(), &mut declared);
    let mut text = String::new();
    for path in files("good")
        .iter()
        .chain([&crate::support::corpus("good").join("additions.secure.yaml")])
    {
        text.push_str(&fs::read_to_string(path).unwrap());
    }
    let deprecated = ["nodepool-id", "public-ip-address"];
    let unused: Vec<&String> = declared
        .iter()
        .filter(|key| !deprecated.contains(&key.as_str()) && !text.contains(&format!("{key}:")))
        .collect();
    assert!(unused.is_empty(), "no good file uses {unused:?}");
}

fn collect_keys(schema: &serde_json::Value, keys: &mut BTreeSet<String>) {
    match schema {
        serde_json::Value::Object(object) => {
            if let Some(serde_json::Value::Object(properties)) = object.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            for value in object.values() {
                collect_keys(value, keys);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        _ => {}
    }
}

#[test]
fn the_schema_in_the_docs_is_current() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    assert_golden(&docs().join("nodepool.schema.json"), &text);
}

#[test]
fn the_reference_in_the_docs_is_current() {
    assert_golden(
        &docs().join("configuration.md"),
        &nodeyard_config::reference(),
    );
}

fn docs() -> std::path::PathBuf {
    checkout().join("docs")
}
