//! Loading malformed files ends, does not panic, and reports positions.

use std::fs;
use std::path::Path;

use crate::support::{environment, files, load_text};
use nodeyard_config::{Mode, load_bytes, render};
use proptest::prelude::*;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

/// Loads as main and as secure file, in both modes, and renders: none of it may panic.
fn load_and_render(bytes: &[u8]) {
    let path = Path::new("nodepool.yaml");
    for mode in [Mode::Daemon, Mode::Check] {
        for secure in [None, Some((path, bytes))] {
            let (config, diagnostics) = load_bytes((path, bytes), secure, &environment(), mode);
            assert_eq!(config.is_none(), diagnostics.has_errors());
            let _ = (
                render(&diagnostics, true),
                serde_json::to_string(&diagnostics).unwrap(),
            );
            let _ = config.map(|config| serde_json::to_string(&config).unwrap());
        }
    }
}

/// One change of a text: where (as a share of its length), how many bytes go, what comes.
fn edits() -> impl Strategy<Value = Vec<(f64, usize, String)>> {
    let token = prop_oneof![
        "[-:,{}\\[\\]\"'|>&*!%#~ \n\t]{1,6}",
        Just("%(NODEPOOL_LONG)".to_owned()),
        Just("<<: *a".to_owned()),
        Just("&a ".to_owned()),
        Just("\n---\n".to_owned()),
        Just("\u{feff}é\u{0}".to_owned()),
        Just("99999999999999999999".to_owned()),
        Just(".nan".to_owned()),
        "\\PC{0,8}",
    ];
    proptest::collection::vec((0.0..1.0_f64, 0..12_usize, token), 1..6)
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        load_and_render(&bytes);
    }

    #[test]
    fn arbitrary_yaml_does_not_panic(text in "[-:,{}\\[\\]\"'|>&*!%#?@a0 \n\t]{0,200}") {
        load_and_render(text.as_bytes());
    }

    #[test]
    fn damaged_files_do_not_panic(index in any::<prop::sample::Index>(), edits in edits()) {
        let files: Vec<_> = files("good").into_iter().chain(files("bad")).collect();
        let mut bytes = fs::read(index.get(&files)).unwrap();
        for (place, gone, new) in edits {
            let at = (place * bytes.len() as f64) as usize;
            let end = (at + gone).min(bytes.len());
            bytes.splice(at..end, new.into_bytes());
        }
        load_and_render(&bytes);
    }
}

const LARGE: usize = 10 << 20;

#[test]
fn many_entries_do_not_panic() {
    let label = "  - {name: label-with-a-long-name, min-ready: 0, max-ready-age: 3600}\n";
    let (config, diagnostics) = load_text(
        &format!("labels:\n{}", label.repeat(LARGE / label.len())),
        Mode::Daemon,
    );
    assert!(
        config.is_some(),
        "the last of many labels with one name counts"
    );
    assert!(diagnostics.warnings > 100_000);
}

#[test]
fn many_keys_in_a_line_do_not_panic() {
    let text = format!("labels: [{{{}}}]", "a: b, ".repeat(LARGE / 6));
    let (config, diagnostics) = load_text(&text, Mode::Daemon);
    assert!(config.is_none());
    assert!(render(&diagnostics, false).len() < 1 << 20);
}

#[test]
fn a_large_scalar_before_a_mistake_does_not_panic() {
    let (config, diagnostics) =
        load_text(&format!("x: \"{}\"\ny: [", "a".repeat(LARGE)), Mode::Daemon);
    assert!(config.is_none());
    assert_eq!(diagnostics.diagnostics[0].code, "yaml-syntax");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let (config, diagnostics) = load_text(&" ".repeat((16 << 20) + 1), Mode::Daemon);
    assert!(config.is_none());
    assert_eq!(diagnostics.diagnostics[0].code, "too-large");
}

#[test]
fn many_findings_are_counted_and_not_rendered() {
    let text = format!("labels:\n{}", "  - 7\n".repeat(5000));
    let (_, diagnostics) = load_text(&text, Mode::Daemon);
    assert_eq!(diagnostics.errors, 5000);
    let rendered = render(&diagnostics, false);
    assert_eq!(rendered.matches("error[NY0103 wrong-type]").count(), 100);
    assert!(rendered.contains("and 4900 more"), "{rendered}");
}

/// Keys below which anything is allowed.
const FREE: &[&str] = &[
    "meta",
    "node-attributes",
    "metadata",
    "instance-properties",
    "spec",
    "volumes",
    "volume-mounts",
    "node-selector",
    "namespace-quota",
    "extra-rules",
    "resources",
];
const MARKER: &str = "wrong-type-here";

/// In every good file every value is replaced by one of another type, one at a time; the place must
/// be pointed at.
#[test]
fn a_wrong_type_is_reported_at_its_line_wherever_it_is() {
    for path in files("good") {
        if path.ends_with("anchors.yaml") {
            continue;
        }
        let tree = to_json(&fs::read_to_string(&path).unwrap());
        let mut places = Vec::new();
        collect(&tree, &mut Vec::new(), &mut places);
        assert!(places.len() > 10, "{}", path.display());
        // A provider named fake… has its driver by its name, whatever else it says.
        places.retain(|place| {
            !path.ends_with("fake.yaml")
                || !matches!(place.last(), Some(Step::Key(key)) if key == "driver")
        });
        for place in places {
            let mut wrong = tree.clone();
            let node = place.iter().fold(&mut wrong, |node, step| match step {
                Step::Key(key) => &mut node[key.as_str()],
                Step::Index(index) => &mut node[*index],
            });
            *node = if node.is_object() {
                json!(MARKER)
            } else {
                json!({MARKER: [1]})
            };
            let text = serde_json::to_string_pretty(&wrong).unwrap();
            let line = 1 + text.lines().position(|line| line.contains(MARKER)).unwrap();
            let (_, diagnostics) = load_text(&text, Mode::Check);
            let near = |found: usize| found.abs_diff(line) <= 1;
            let reported = diagnostics.iter().any(|diagnostic| {
                diagnostic
                    .place
                    .as_ref()
                    .is_some_and(|place| near(place.line))
            });
            assert!(
                reported,
                "{}: {place:?} near line {line}:\n{}",
                path.display(),
                render(&diagnostics, false)
            );
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Key(String),
    Index(usize),
}

fn collect(node: &Value, path: &mut Vec<Step>, places: &mut Vec<Vec<Step>>) {
    places.push(path.clone());
    if matches!(path.last(), Some(Step::Key(key)) if FREE.contains(&key.as_str())) {
        return;
    }
    match node {
        Value::Object(object) => {
            for (key, value) in object {
                path.push(Step::Key(key.clone()));
                collect(value, path, places);
                path.pop();
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                path.push(Step::Index(index));
                collect(value, path, places);
                path.pop();
            }
        }
        _ => {}
    }
}

/// A file of the corpus as JSON, which is YAML too and has one value per line.
fn to_json(text: &str) -> Value {
    let mut stack: Vec<(Value, Option<String>)> = Vec::new();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let done = match event.unwrap().0 {
            Event::SequenceStart(..) => {
                stack.push((json!([]), None));
                continue;
            }
            Event::MappingStart(..) => {
                stack.push((Value::Object(Map::new()), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => stack.pop().unwrap().0,
            Event::Scalar(text, ScalarStyle::Plain, ..) => match text.parse::<f64>() {
                Ok(_) => serde_json::from_str(&text).unwrap_or(json!(text)),
                Err(_) if matches!(&*text, "true" | "yes") => json!(true),
                Err(_) if matches!(&*text, "false" | "no") => json!(false),
                Err(_) => json!(text),
            },
            Event::Scalar(text, ..) => json!(text),
            Event::StreamEnd => break,
            _ => continue,
        };
        match stack.last_mut() {
            None => return done,
            Some((Value::Array(items), _)) => items.push(done),
            Some((Value::Object(object), key)) => match key.take() {
                None => {
                    *key = Some(
                        done.as_str()
                            .map_or_else(|| done.to_string(), str::to_owned),
                    );
                }
                Some(key) => {
                    object.insert(key, done);
                }
            },
            Some(_) => panic!("a scalar holds nothing"),
        }
    }
    panic!("no document")
}
