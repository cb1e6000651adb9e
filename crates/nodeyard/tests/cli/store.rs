//! Looking into a store, and moving it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use nodeyard_testbeds::ZooKeeperServer;
use serde_json::Value;

use crate::bed::{Bed, Ran, read_until, signal};

const EXPORT: &str = r#"{"nodeyard-export":1}
{"path":"/nodepool","creates":2}
{"path":"/nodepool/nodes","creates":12}
{"path":"/nodepool/nodes/0000000007","data":"{\"state\": \"ready\", \"big\": 340282366920938463463374607431768211455}"}
{"path":"/nodepool/nodes/0000000009","hex":"ff00fe"}
"#;

fn filled() -> Bed {
    let bed = Bed::new();
    bed.write("in.jsonl", EXPORT);
    let mut daemon = bed.up(&[]);
    bed.store(&["import", "in.jsonl"]).succeeded();
    assert_eq!(daemon.terminate(), 0);
    bed
}

/// The records of an export, without its header and its end.
fn records(export: &str) -> Vec<Value> {
    let lines = export
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line.get("path").is_some()).collect()
}

fn mode(bed: &Bed, name: &str) -> u32 {
    fs::metadata(bed.path(name)).unwrap().permissions().mode() & 0o777
}

#[test]
fn commands_work_with_and_without_an_owner() {
    let bed = filled();
    let offline = bed.store(&["ls", "-r", "/"]).succeeded().out;
    let _daemon = bed.up(&[]);
    let online = bed.store(&["ls", "-r", "/"]).succeeded().out;
    assert_eq!(offline, online);
    assert!(online.contains("/nodepool/nodes/0000000007"), "{online}");
}

#[test]
fn a_record_is_printed_as_it_is_stored() {
    let bed = filled();
    let path = "/nodepool/nodes/0000000007";
    let plain = bed.store(&["get", path]).succeeded().out;
    assert_eq!(
        plain,
        "{\"state\": \"ready\", \"big\": 340282366920938463463374607431768211455}\n"
    );
    let json = bed
        .store(&["--format", "json", "get", path])
        .succeeded()
        .out;
    assert!(
        json.contains("340282366920938463463374607431768211455"),
        "{json}"
    );
    let stat = bed
        .store(&["get", "--stat", "/nodepool/nodes"])
        .succeeded()
        .out;
    assert!(
        stat.lines()
            .any(|line| line.split_whitespace().eq(["children", "2"])),
        "{stat}"
    );
    bed.store(&["get", "/nodepool/nodes/0000000008"])
        .failed("no such record");
}

#[test]
fn changes_are_seen_as_they_happen() {
    let bed = filled();
    let _daemon = bed.up(&[]);
    let mut watch = bed
        .command()
        .args([
            "store",
            "--state-dir",
            "state",
            "--format",
            "json",
            "watch",
            "/nodepool",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The watch tells when it is set, so nothing is missed from here on.
    read_until(&mut watch, "watching");
    let more = EXPORT.replace("0000000007", "0000000010");
    bed.write("more.jsonl", more);
    bed.store(&["import", "more.jsonl"]).succeeded();
    let seen = read_until(&mut watch, "0000000010");
    assert!(seen.contains(r#""event":"created""#), "{seen}");
    signal(&watch, "INT");
    assert!(watch.wait().unwrap().success());
}

#[test]
fn a_state_moves_to_zookeeper_and_back_with_its_counters() {
    let bed = filled();
    bed.store(&["export", "first.jsonl"]).succeeded();
    assert_eq!(mode(&bed, "first.jsonl"), 0o600);

    let server = ZooKeeperServer::start().unwrap();
    let certificates = server.certificates();
    bed.write(
        "zookeeper.yaml",
        format!(
            "zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\nzookeeper-tls: {{ca: {}, cert: {}, key: {}}}\n",
            server.tls_port(),
            certificates.ca.display(),
            certificates.client.cert.display(),
            certificates.client.key.display(),
        ),
    );
    bed.run(["-c", "zookeeper.yaml", "store", "import", "first.jsonl"])
        .succeeded();
    bed.run([
        "-c",
        "zookeeper.yaml",
        "store",
        "export",
        "second.jsonl",
        "--path",
        "/nodepool",
    ])
    .succeeded();
    let first = records(&fs::read_to_string(bed.path("first.jsonl")).unwrap());
    let second = records(&fs::read_to_string(bed.path("second.jsonl")).unwrap());
    assert_eq!(
        first[1..],
        second[..],
        "beside the root, which has ZooKeeper's own child"
    );
    assert_eq!(second[1]["creates"], 12);

    let back = Bed::new();
    back.write("second.jsonl", fs::read(bed.path("second.jsonl")).unwrap());
    let _daemon = back.up(&[]);
    back.store(&["import", "second.jsonl"]).succeeded();
    back.store(&["export", "third.jsonl", "--path", "/nodepool"])
        .succeeded();
    assert_eq!(
        second,
        records(&fs::read_to_string(back.path("third.jsonl")).unwrap())
    );
}

#[test]
fn an_export_replaces_another_as_a_whole_and_is_for_its_owner_alone() {
    let bed = filled();
    let before = bed.write("out.jsonl", "what was there before");
    fs::set_permissions(&before, fs::Permissions::from_mode(0o644)).unwrap();
    bed.store(&["export", "--path", "/not/there", "out.jsonl"])
        .failed("no such record");
    assert_eq!(
        fs::read_to_string(&before).unwrap(),
        "what was there before"
    );
    std::os::unix::fs::symlink("out.jsonl", bed.path("link.jsonl")).unwrap();
    let to_stdout = bed.store(&["export", "-"]).succeeded().out;
    bed.store(&["export", "link.jsonl"]).succeeded();
    assert_eq!(mode(&bed, "out.jsonl"), 0o600);
    assert_eq!(fs::read_to_string(&before).unwrap(), to_stdout);
    // No draft is left.
    let names = fs::read_dir(bed.path("")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let drafts: Vec<String> = names.filter(|name| name.starts_with(".tmp")).collect();
    assert!(drafts.is_empty(), "{drafts:?}");

    let lines: Vec<&str> = to_stdout.lines().collect();
    bed.write("cut.jsonl", lines[..lines.len() - 1].join("\n") + "\n");
    let target = Bed::new();
    let _daemon = target.up(&[]);
    target
        .store(&["import", bed.path("cut.jsonl").to_str().unwrap()])
        .failed("the file is truncated");
    target.store(&["get", "/nodepool"]).failed("no such record");
}

#[test]
fn an_import_changes_nothing_unless_it_can_do_everything() {
    let bed = filled();
    let _daemon = bed.up(&[]);
    bed.write(
        "other.jsonl",
        EXPORT.replace("ready", "used").replace(
            "\"creates\":12}",
            "\"creates\":12}\n{\"path\":\"/nodepool/new\"}",
        ),
    );
    bed.store(&["import", "other.jsonl"])
        .failed("/nodepool/nodes/0000000007 already exists");
    bed.store(&["get", "/nodepool/new"])
        .failed("no such record");
    let dry = bed
        .store(&["import", "--overwrite", "--dry-run", "other.jsonl"])
        .succeeded();
    assert!(
        dry.err.contains("1 records created, 1 replaced")
            || dry.err.contains("1 record created, 1 replaced"),
        "{}",
        dry.err
    );
    bed.store(&["get", "/nodepool/new"])
        .failed("no such record");
    bed.store(&["import", "--overwrite", "other.jsonl"])
        .succeeded();
    assert!(
        bed.store(&["get", "/nodepool/nodes/0000000007"])
            .succeeded()
            .out
            .contains("used")
    );

    for (name, text, reason) in [
        ("empty", "", "the file is empty"),
        ("foreign", "{\"a\": 1}\n", "line 1: expected the header"),
        (
            "newer",
            "{\"nodeyard-export\": 3}\n",
            "unsupported export format 3",
        ),
        (
            "cut",
            "{\"nodeyard-export\": 2}\n{\"path\": \"/x\"}\n",
            "the file is truncated",
        ),
        (
            "short",
            "{\"nodeyard-export\": 2}\n{\"path\": \"/x\"}\n{\"records\": 2}\n",
            "expected 2 records, found 1",
        ),
        (
            "long",
            "{\"nodeyard-export\": 2}\n{\"records\": 0}\n{\"path\": \"/x\"}\n",
            "line 3 follows the last line",
        ),
        (
            "broken",
            "{\"nodeyard-export\": 1}\n{\"path\": \"/x\"}\n{\"path\"\n",
            "line 3",
        ),
        (
            "path",
            "{\"nodeyard-export\": 1}\n{\"path\": \"x/../y\"}\n",
            "line 2",
        ),
        (
            "hex",
            "{\"nodeyard-export\": 1}\n{\"path\": \"/x\", \"hex\": \"abc\"}\n",
            "hexadecimal",
        ),
        (
            "orphan",
            "{\"nodeyard-export\": 1}\n{\"path\": \"/not/there\"}\n",
            "/not/there",
        ),
    ] {
        bed.write(name, text);
        bed.store(&["import", name]).failed(reason);
    }
    bed.store(&["get", "/x"]).failed("no such record");
}

#[test]
fn a_missing_store_is_reported() {
    let bed = Bed::new();
    bed.store(&["ls"]).failed("start one with `nodeyard up`");
    bed.write(
        "zookeeper.yaml",
        "zookeeper-servers: [{host: 127.0.0.1, port: 1}]\n",
    );
    let output = bed.run(["-c", "zookeeper.yaml", "store", "--timeout", "1", "ls"]);
    Ran { ..output }.failed("127.0.0.1:1");
}
