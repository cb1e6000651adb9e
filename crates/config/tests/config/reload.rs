//! A changed file is reloaded while running; a broken one is rejected.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{ConfigHandle, ConfigSource, Mode, Reloader, load};
use tempfile::TempDir;

/// Far more than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

fn text(label: &str) -> String {
    format!("labels:\n  - name: {label}\n")
}

/// Follows `main`, which exists, until the handle's task is aborted with the runtime.
fn follow(main: &Path, secure: Option<&Path>) -> ConfigHandle {
    let source = ConfigSource {
        main: main.into(),
        secure: secure.map(Into::into),
        environment: Vec::new(),
    };
    let loaded = load(&source, Mode::Daemon);
    let (reloader, handle) = Reloader::new(source, Arc::new(loaded.config.unwrap()), loaded.stamp);
    tokio::spawn(reloader.run());
    handle
}

async fn wait_for_label(handle: &mut ConfigHandle, label: &str) {
    let wait = async {
        while !handle.config().labels.contains_key(label) {
            handle.changed().await.unwrap();
        }
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("{label} never came"));
}

async fn wait_for_rejection(handle: &ConfigHandle, rejected: bool) {
    let wait = async {
        while handle.rejected().is_some() != rejected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("rejected never became {rejected}"));
}

#[tokio::test]
async fn a_broken_file_is_rejected() {
    let directory = TempDir::new().unwrap();
    let main = directory.path().join("nodepool.yaml");
    fs::write(&main, text("first")).unwrap();
    let mut handle = follow(&main, None);

    fs::write(&main, "labels: [").unwrap();
    wait_for_rejection(&handle, true).await;
    assert!(handle.config().labels.contains_key("first"));
    assert_eq!(
        handle.rejected().unwrap().diagnostics[0].code,
        "yaml-syntax"
    );

    fs::write(&main, text("second")).unwrap();
    wait_for_label(&mut handle, "second").await;
    wait_for_rejection(&handle, false).await;
}

#[tokio::test]
async fn a_file_replaced_by_renaming_is_reloaded() {
    let directory = TempDir::new().unwrap();
    let main = directory.path().join("nodepool.yaml");
    fs::write(&main, text("first")).unwrap();
    let mut handle = follow(&main, None);
    for label in ["second", "third"] {
        let new = directory.path().join(".nodepool.yaml.swp");
        fs::write(&new, text(label)).unwrap();
        fs::rename(&new, &main).unwrap();
        wait_for_label(&mut handle, label).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_config_map_with_a_swapped_link_is_reloaded() {
    use std::os::unix::fs::symlink;

    let directory = TempDir::new().unwrap();
    let publish = |version: &str, label: &str| {
        let data = directory.path().join(version);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("nodepool.yaml"), text(label)).unwrap();
        let link = directory.path().join("..data_tmp");
        symlink(version, &link).unwrap();
        fs::rename(&link, directory.path().join("..data")).unwrap();
    };
    publish("..v1", "first");
    let main = directory.path().join("nodepool.yaml");
    symlink("..data/nodepool.yaml", &main).unwrap();
    let mut handle = follow(&main, None);
    publish("..v2", "second");
    wait_for_label(&mut handle, "second").await;
}

#[tokio::test]
async fn an_empty_secure_file_causes_no_endless_reloading() {
    let directory = TempDir::new().unwrap();
    let (main, secure) = (
        directory.path().join("nodepool.yaml"),
        directory.path().join("secure.yaml"),
    );
    fs::write(&main, "diskimages: [{name: img}]").unwrap();
    fs::write(&secure, "").unwrap();
    let source = ConfigSource {
        main: main.clone(),
        secure: Some(secure.clone()),
        environment: Vec::new(),
    };
    let first = load(&source, Mode::Daemon);
    assert_eq!(
        first.stamp,
        nodeyard_config::ConfigStamp::of(&source),
        "both files are on record"
    );

    let mut handle = follow(&main, Some(&secure));
    fs::write(&secure, "diskimages: [{name: img, env-vars: {A: b}}]").unwrap();
    let changed = tokio::time::timeout(DEADLINE, handle.changed())
        .await
        .unwrap()
        .unwrap();
    assert!(
        !format!("{changed:?}").contains("\"b\""),
        "the value came from the secure file"
    );
}

#[test]
fn files_that_cannot_be_read_are_explained() {
    let directory = TempDir::new().unwrap();
    let load = |path: &Path| {
        let source = ConfigSource {
            main: path.into(),
            secure: None,
            environment: Vec::new(),
        };
        let loaded = load(&source, Mode::Check);
        assert!(loaded.config.is_none());
        let diagnostic = loaded.diagnostics.diagnostics[0].clone();
        assert!(diagnostic.help.is_some());
        diagnostic.code
    };
    assert_eq!(load(directory.path()), "unreadable-file");
    assert_eq!(load(&directory.path().join("nowhere.yaml")), "missing-file");
}
