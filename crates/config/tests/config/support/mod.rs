//! What the test files of this crate share. Not every one uses all of it.

use std::fs;
use std::path::{Path, PathBuf};

use nodeyard_config::{Config, Diagnostics, Environment, Mode, load_bytes};
use nodeyard_testbeds::checkout;

pub(crate) fn corpus(kind: &str) -> PathBuf {
    checkout().join("crates/config/tests/corpus").join(kind)
}

/// The YAML files of one part of the corpus, in order; secure files belong to another one.
pub(crate) fn files(kind: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(corpus(kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.ends_with(".yaml") && !name.ends_with(".secure.yaml")
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no files in corpus/{kind}");
    files
}

/// The variables that files of the corpus may use.
pub(crate) fn environment() -> Environment {
    let variables = [
        ("NODEPOOL_NAME", "interpolated-name"),
        ("NODEPOOL_SECRET", "hunter2-from-the-environment"),
        (
            "NODEPOOL_LONG",
            "a-rather-long-value-that-moves-everything-to-the-right",
        ),
    ];
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    variables.into_iter().map(owned).collect()
}

/// Loads a file of the corpus with the secure file beside it, if there is one.
pub(crate) fn load_file(path: &Path, mode: Mode) -> (Option<Config>, Diagnostics) {
    let secure = path.with_extension("secure.yaml");
    let secure_bytes = fs::read(&secure).ok();
    let name = |path: &Path| PathBuf::from(path.file_name().unwrap());
    let (main_name, secure_name) = (name(path), name(&secure));
    load_bytes(
        (&main_name, &fs::read(path).unwrap()),
        secure_bytes
            .as_deref()
            .map(|bytes| (secure_name.as_path(), bytes)),
        &environment(),
        mode,
    )
}

pub(crate) fn load_text(text: &str, mode: Mode) -> (Option<Config>, Diagnostics) {
    load_bytes(
        (Path::new("nodepool.yaml"), text.as_bytes()),
        None,
        &environment(),
        mode,
    )
}

/// Compares with the file at `path`, or rewrites it when UPDATE_GOLDEN is set.
pub(crate) fn assert_golden(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs (UPDATE_GOLDEN=1 rewrites it); it should now be:\n{actual}",
        path.display()
    );
}
