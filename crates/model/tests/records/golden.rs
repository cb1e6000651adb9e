//! Golden files: records written by Python Nodepool and Zuul.

use std::path::PathBuf;

use nodeyard_testbeds::checkout;

use crate::canonical::Json;
use crate::rewrite;

pub(crate) fn directory() -> PathBuf {
    checkout().join("crates/model/tests/golden")
}

/// A golden file, named `<writer>-<kind>-<case>.json`.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
}

impl Golden {
    pub(crate) fn kind(&self) -> &str {
        self.name.split('-').nth(1).unwrap()
    }

    fn writer(&self) -> &str {
        self.name.split('-').next().unwrap()
    }
}

pub(crate) fn all() -> Vec<Golden> {
    let mut all: Vec<_> = directory()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| Golden {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            data: std::fs::read(&path).unwrap(),
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Returns the expected result of rewriting a golden file.
fn expected(golden: &Golden) -> std::collections::BTreeMap<String, Json> {
    let mut keys = Json::record(&golden.data);
    match (golden.writer(), golden.kind()) {
        ("zuul", "node") => {
            // `id` is dropped; `ssh_port` follows `connection_port`, which Zuul has cleared.
            keys.remove("id").unwrap();
            keys.insert("ssh_port".to_owned(), keys["connection_port"].clone());
        }
        ("zuul", "request") => {
            // Nodepool writes all keys, Zuul only those it knows.
            keys.insert("nodes".to_owned(), Json::List(Vec::new()));
            keys.insert("declined_by".to_owned(), Json::List(Vec::new()));
            keys.insert("reuse".to_owned(), Json::Bool(true));
        }
        _ => {}
    }
    keys
}

#[test]
fn records_of_python_are_rewritten_without_loss() {
    let all = all();
    assert!(all.len() >= 30, "golden files are missing: {}", all.len());
    for golden in &all {
        let written = rewrite(golden.kind(), &golden.data).unwrap();
        assert_eq!(Json::record(&written), expected(golden), "{}", golden.name);
    }
}

#[test]
fn components_are_rewritten_to_the_same_bytes() {
    for golden in all() {
        if matches!(golden.kind(), "component" | "pool") {
            let written = rewrite(golden.kind(), &golden.data).unwrap();
            assert_eq!(written, golden.data, "{}", golden.name);
        }
    }
}
