//! The real Nodepool loads the same files with the same result.
//!
//! Needs the Python environment that `make testbeds` installs.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{files, load_file};
use nodeyard_config::Mode;
use nodeyard_testbeds::checkout;
use serde_json::{Map, Value, json};

/// Attributes Nodepool has under another name than the file.
const RENAMED: &[(&str, &str)] = &[
    ("az", "availability-zone"),
    ("azs", "availability-zones"),
    ("image-types", "formats"),
    ("keep-image-types", "keep-formats"),
    ("meta", "metadata"),
    ("Name", "name"),
    ("Values", "values"),
];

/// Attributes that are not compared: the file (any if empty), the attribute, the reason.
const NOT_COMPARED: &[(&str, &str, &str)] = &[
    (
        "",
        "image-type",
        "worked out from clouds.yaml or the driver",
    ),
    (
        "",
        "ignore-provider-quota",
        "every pool has it there, OpenStack's have it here",
    ),
    ("metastatic", "use-internal-ip", "a constant"),
    ("metastatic", "cloud-image", "a constant"),
    ("aws", "image-name-format", "a constant"),
];

fn python() -> PathBuf {
    if let Some(venv) = std::env::var_os("NODEYARD_NODEPOOL_VENV") {
        return PathBuf::from(venv).join("bin/python");
    }
    let script = checkout().join("testbeds/python/install.sh");
    let found = Command::new(script).args(["--find", "nodepool"]).output();
    match found {
        Ok(found) if found.status.success() => {
            PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()).join("bin/python")
        }
        _ => panic!("the Python environment with Nodepool is missing: run `make testbeds`"),
    }
}

#[test]
fn nodepool_loads_every_good_file_with_the_same_result() {
    let good: Vec<PathBuf> = files("good")
        .into_iter()
        .filter(|path| !fs::read_to_string(path).unwrap().starts_with("# nodeyard:"))
        .collect();
    let theirs = load_with_nodepool(&good);
    let mut differences = Vec::new();
    for path in &good {
        let (config, _) = load_file(path, Mode::Check);
        let ours = serde_json::to_value(config.unwrap()).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let theirs = &theirs[path.to_str().unwrap()];
        compare(
            name,
            &normal_theirs(theirs.clone()),
            &normal_ours(ours),
            &mut differences,
        );
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn load_with_nodepool(files: &[PathBuf]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let clouds = directory.path().join("clouds.yaml");
    let cloud = json!({"auth": {"auth_url": "http://127.0.0.1:1/v3", "username": "u", "password": "p", "project_name": "p"}});
    let all = json!({"clouds": {"vexxhost": cloud, "other": cloud, "c": cloud, "fake": cloud}});
    fs::write(&clouds, all.to_string()).unwrap();
    let script = checkout().join("crates/config/tests/nodepool_values.py");
    let output = Command::new(python())
        .arg(script)
        .args(files)
        .env("OS_CLIENT_CONFIG_FILE", &clouds)
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every value Nodepool has must be ours too.
fn compare(path: &str, theirs: &Value, ours: &Value, differences: &mut Vec<String>) {
    if let (Value::Object(theirs), Value::Object(ours)) = (theirs, ours) {
        for (key, value) in theirs {
            let skipped =
                |(file, name, _): &(&str, &str, &str)| name == key && path.starts_with(file);
            if !NOT_COMPARED.iter().any(skipped) {
                compare(
                    &format!("{path}.{key}"),
                    value,
                    ours.get(key).unwrap_or(&Value::Null),
                    differences,
                );
            }
        }
    } else if !equal(theirs, ours) {
        differences.push(format!("{path}: Nodepool has {theirs}, we have {ours}"));
    }
}

fn equal(theirs: &Value, ours: &Value) -> bool {
    // What is not set is null, empty or false, depending on the driver's author.
    let is_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    };
    match (theirs, ours) {
        (Value::Number(theirs), Value::Number(ours)) => theirs.as_f64() == ours.as_f64(),
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len()
                && theirs
                    .iter()
                    .zip(ours)
                    .all(|(theirs, ours)| equal(theirs, ours))
        }
        (Value::Object(theirs), Value::Object(ours)) => theirs
            .iter()
            .all(|(key, value)| equal(value, ours.get(key).unwrap_or(&Value::Null))),
        _ => theirs == ours || (is_nothing(theirs) && is_nothing(ours)),
    }
}

/// Theirs in our spelling.
fn normal_theirs(mut theirs: Value) -> Value {
    rename(&mut theirs);
    let root = theirs.as_object_mut().unwrap();
    // Nodepool fills this in where it writes logs.
    if root["build-log-dir"].is_null() {
        root.remove("build-log-dir");
    }
    for image in each(&mut root["diskimages"]) {
        let elements = image["elements"].as_str().unwrap();
        image["elements"] = elements.split_whitespace().collect();
        // Nodepool adds those that providers ask for, some of them from clouds.yaml.
        image.as_object_mut().unwrap().remove("formats");
    }
    for label in each(&mut root["labels"]) {
        zero_is_none(label, "max-ready-age");
    }
    zero_is_none(&mut theirs, "max-hold-age");
    for provider in each(&mut theirs["providers"]) {
        for key in ["priority", "max-concurrency"] {
            // Nothing set, and the two ways to write it.
            if provider[key].is_null() || provider[key] == json!(-1) {
                provider.as_object_mut().unwrap().remove(key);
            }
        }
        for image in each(&mut provider["diskimages"]) {
            // Taken from the image at the top of the file; in our case where it is used.
            let image = image.as_object_mut().unwrap();
            for key in ["username", "python-path", "shell-type"] {
                image.remove(key);
            }
        }
        for pool in each(&mut provider["pools"]) {
            if pool["priority"].is_null() {
                pool.as_object_mut().unwrap().remove("priority");
            }
            for label in each(&mut pool["labels"]) {
                zero_is_none(label, "min-ram");
            }
        }
    }
    theirs
}

fn rename(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let entries = std::mem::take(object);
            for (key, mut value) in entries {
                rename(&mut value);
                let new = RENAMED
                    .iter()
                    .find(|(old, _)| *old == key)
                    .map_or(key.clone(), |(_, new)| (*new).to_owned());
                object.insert(new, value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rename),
        _ => {}
    }
}

fn zero_is_none(value: &mut Value, key: &str) {
    if value[key] == json!(0) {
        value[key] = Value::Null;
    }
}

fn each(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Object(object) => object.values_mut().collect(),
        _ => Vec::new(),
    }
}

/// Ours in the shape of theirs: lists of named things by name, images flat.
fn normal_ours(mut ours: Value) -> Value {
    let mut images = ours["images"].take();
    for image in each(&mut images) {
        if let Value::Object(build) = image["source"]["build"].take() {
            image.as_object_mut().unwrap().extend(build);
            image["dib-cmd"] = image["command"].take();
        }
    }
    ours["diskimages"] = images;
    let servers = ours["zookeeper"]["servers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let addresses: Vec<String> = servers.iter().map(address).collect();
    let chroot = ours["zookeeper"]["chroot"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ours["zookeeper-timeout"] = ours["zookeeper"]["timeout"].take();
    ours["zookeeper"] = json!(addresses.join(",") + &chroot);
    for limits in each(&mut ours["tenant-resource-limits"]) {
        let limits = limits.as_object_mut().unwrap();
        for (file, internal) in [
            ("max-servers", "instances"),
            ("max-cores", "cores"),
            ("max-ram", "ram"),
            ("max-volumes", "volumes"),
            ("max-volume-gb", "volume-gb"),
        ] {
            let value = limits.remove(file).unwrap();
            limits.insert(internal.into(), value);
        }
    }
    for provider in each(&mut ours["providers"]) {
        for key in ["pools", "diskimages", "cloud-images"] {
            by_name(provider, key);
        }
        for alias in ["max-projects", "max-pods"] {
            if let Some(limit) = provider.get(alias).cloned() {
                provider["max-servers"] = limit;
            }
        }
        for image in each(&mut provider["diskimages"]) {
            // Where there are both, `tags` is ours.
            let tags = if image.get("meta").is_some() {
                "meta"
            } else {
                "tags"
            };
            image["metadata"] = image[tags].take();
        }
        for pool in each(&mut provider["pools"]) {
            if pool.get("nodes").is_some() {
                let labels = pool["nodes"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|node| node["labels"].as_array().unwrap());
                let labels: BTreeSet<&str> = labels.map(|label| label.as_str().unwrap()).collect();
                pool["label-names"] = json!(labels);
                continue;
            }
            by_name(pool, "labels");
            let of_pool = pool["host-key-checking"].clone();
            for label in each(&mut pool["labels"])
                .into_iter()
                .filter_map(Value::as_object_mut)
            {
                label.entry("host-key-checking").or_insert(of_pool.clone());
                if label.get("type") == Some(&Value::Null) {
                    label.insert("type".into(), json!("pod"));
                }
            }
        }
    }
    ours
}

fn address(server: &Value) -> String {
    let (host, port) = (server["host"].as_str().unwrap(), &server["port"]);
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn by_name(parent: &mut Value, key: &str) {
    if let Some(Value::Array(items)) = parent.get_mut(key).map(Value::take) {
        let named: Map<String, Value> = items
            .into_iter()
            .map(|item| (item["name"].as_str().unwrap().to_owned(), item))
            .collect();
        parent[key] = Value::Object(named);
    }
}
