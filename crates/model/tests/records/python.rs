//! Our records, parsed by the classes of Python Nodepool and Zuul.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodeyard_model::{
    BuildState, ConnectionPort, ImageBuild, ImageUpload, Label, Node, NodeRequest, NodeState,
    Opaque, Record as _, RequestState, Resources, Timestamp, UploadState,
};
use nodeyard_testbeds::checkout;

use crate::canonical::Json;
use crate::{golden, rewrite};

/// Returns the Python interpreter of an environment created by `make testbeds`.
fn python(program: &str) -> PathBuf {
    let install = checkout().join("testbeds/python/install.sh");
    let output = Command::new(install)
        .args(["--find", program])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "this test needs Python {program}: run `make testbeds` once"
    );
    Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("bin/python")
}

/// Runs a command of `<program>_records.py` and returns its output lines.
fn run(program: &str, command: &str, input: &str) -> Vec<String> {
    let mut stdin: File = tempfile::tempfile().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    stdin.rewind().unwrap();
    let output = Command::new(python(program))
        .arg(golden::directory().join(format!("{program}_records.py")))
        .arg(command)
        .stdin(stdin)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(str::to_owned).collect()
}

/// Sends records through the classes of `program` and returns each with its result.
fn echo(
    program: &str,
    records: &[(&str, Vec<u8>)],
) -> Vec<(BTreeMap<String, Json>, BTreeMap<String, Json>)> {
    let input: String = records
        .iter()
        .map(|(kind, json)| {
            let json = std::str::from_utf8(json).unwrap();
            format!("{{\"kind\": \"{kind}\", \"record\": {json}}}\n")
        })
        .collect();
    let lines = run(program, "echo", &input);
    assert_eq!(lines.len(), records.len());
    records
        .iter()
        .zip(lines)
        .map(|((_, ours), theirs)| (Json::record(ours), Json::record(theirs.as_bytes())))
        .collect()
}

/// Our own records, with text and numbers that are easily corrupted.
fn made() -> Vec<(&'static str, Vec<u8>)> {
    let time = Timestamp::from_secs(1_700_000_000.123_456_7).unwrap();
    let odd = "ü ☃ 𝄞 \"quoted\" \\ \u{0} \u{1f} \u{7f} \u{85} \u{2028} \n";

    let mut request = NodeRequest::new(RequestState::Requested, time);
    request.labels = vec![Label::from(odd), "small".into()];
    request.requestor = Some("NodePool:min-ready".into());
    request.relative_priority = -3;

    let mut node = Node::init(time);
    node.labels = vec!["small".into()];
    node.comment = Some(odd.into());
    node.resources = Some(Resources::new(4, 1, 8192));
    node.user_data = Opaque::string(odd);
    node.connection_port = ConnectionPort::Cluster(Opaque::encode(&["a"; 1]).unwrap());
    let plain = Node::new(NodeState::Deleting, time);

    let mut build = ImageBuild::new(BuildState::Ready, time);
    build.formats = ["raw", "qcow2"].into_iter().collect();
    build.builder = Some("nb01".into());
    let mut upload = ImageUpload::new(UploadState::Failed, time);
    upload.external_name = Some(odd.into());

    vec![
        ("request", request.to_json()),
        ("node", node.to_json()),
        ("node", plain.to_json()),
        ("build", build.to_json()),
        ("upload", upload.to_json()),
    ]
}

/// Our own records, and all golden ones as rewritten.
fn records(golden: &[golden::Golden]) -> Vec<(&str, Vec<u8>)> {
    let rewritten = golden
        .iter()
        .map(|golden| (golden.kind(), rewrite(golden.kind(), &golden.data).unwrap()));
    made().into_iter().chain(rewritten).collect()
}

#[test]
fn nodepool_parses_our_records() {
    for (ours, theirs) in echo("nodepool", &records(&golden::all())) {
        assert_eq!(theirs, ours);
    }
}

#[test]
fn zuul_parses_our_records() {
    let all = golden::all();
    let mut records = records(&all);
    records.retain(|(kind, _)| matches!(*kind, "request" | "node"));
    for (ours, mut theirs) in echo("zuul", &records) {
        if ours.contains_key("requestor_data") {
            // Zuul adds its own keys to requests without data.
            if ours["requestor_data"] == Json::Null {
                theirs.insert("requestor_data".to_owned(), Json::Null);
            }
        } else {
            theirs.remove("id").unwrap();
        }
        assert_eq!(theirs, ours);
    }
}

#[test]
fn no_key_replaces_an_attribute_of_zuuls_node() {
    let reserved = run("zuul", "reserved", "").concat();
    let reserved: Vec<String> = serde_json::from_str(&reserved).unwrap();
    assert!(reserved.iter().any(|key| key == "toDict"));
    let keys: Vec<_> = reserved
        .iter()
        .map(|key| format!("\"{key}\": 1, "))
        .collect();
    let record = format!(
        "{{{} \"state\": \"ready\", \"state_time\": 1.5, \"harmless\": 1}}",
        keys.concat()
    );
    let node = Node::from_json(record.as_bytes()).unwrap();
    let kept: Vec<_> = node.other().iter().map(|(key, _)| key).collect();
    assert_eq!(kept, ["harmless"]);
}

#[test]
fn golden_files_are_up_to_date() {
    python("nodepool");
    python("zuul");
    let fresh = tempfile::tempdir().unwrap();
    let status = Command::new(golden::directory().join("make.sh"))
        .arg(fresh.path())
        .status()
        .unwrap();
    assert!(status.success());
    let golden = golden::all();
    assert_eq!(fresh.path().read_dir().unwrap().count(), golden.len());
    for golden in golden {
        let made = std::fs::read(fresh.path().join(format!("{}.json", golden.name))).unwrap();
        assert_eq!(
            String::from_utf8(made).unwrap(),
            String::from_utf8(golden.data).unwrap(),
            "{}: run crates/model/tests/golden/make.sh and look at the difference",
            golden.name
        );
    }
}
