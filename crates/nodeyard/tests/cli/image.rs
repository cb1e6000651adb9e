//! Images: from a program to an upload, and what is said about them.

use std::fs;

use serde_json::Value;

use crate::bed::{Bed, wait_until};

/// `nodeyard up` with an image that a small program makes.
fn bed() -> Bed {
    let mut bed = Bed::new();
    let program = bed.image_program();
    bed.write(
        "nodepool.yaml",
        format!(
            "state-dir: state\n\
             images-dir: images\n\
             build-log-dir: logs\n\
             images-dir-reserve: 0\n\
             image-size-estimate: 1M\n\
             webapp: {{port: {}, listen_address: 127.0.0.1}}\n\
             diskimages: [{{name: tiny, builder: command, command: {}, formats: [qcow2]}}]\n\
             labels: []\n\
             providers: [{{name: somewhere, driver: fake, diskimages: [{{name: tiny}}], pools: []}}]\n",
            bed.free_port(),
            program.display()
        ),
    );
    bed
}

fn image(bed: &Bed, args: &[&str]) -> crate::bed::Ran {
    let start = ["-c", "nodepool.yaml", "image"];
    bed.run(start.iter().chain(args))
}

fn up(bed: &Bed) -> crate::bed::Daemon {
    let daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    daemon.wait_for_log("store ready");
    daemon
}

#[test]
fn is_built_uploaded_and_explained() {
    let bed = bed();
    let _daemon = up(&bed);
    let waited = image(&bed, &["build", "tiny", "--wait"]).succeeded();
    assert!(waited.err.contains("is ready"), "{}", waited.err);
    let mut nodepool = bed.called("nodepool");
    nodepool.args(["-c", "nodepool.yaml", "image-build", "tiny", "--wait"]);
    let waited = crate::bed::Ran::from(nodepool.output().unwrap()).succeeded();
    assert!(waited.err.contains("is ready"), "{}", waited.err);
    let uploads = image(&bed, &["uploads", "--format", "json"]).succeeded();
    let uploads: Value = serde_json::from_str(&uploads.out).unwrap();
    assert_eq!(uploads[0]["state"], "ready");
    let logs = image(&bed, &["logs", "tiny"]).succeeded();
    assert!(
        logs.out.starts_with("one line of the log\n"),
        "{}",
        logs.out
    );
    // The system chose the job server's port; commands on this host are told it.
    let told = fs::read_to_string(bed.path("images/job-server.txt")).unwrap();
    std::net::TcpStream::connect(told.trim()).unwrap();
    image(&bed, &["pause", "tiny"]).succeeded();
    let why = image(&bed, &["why", "tiny"]).succeeded();
    assert!(why.out.contains("paused"), "{}", why.out);
}

#[test]
fn that_cannot_be_built_says_why() {
    let bed = bed();
    bed.write("broken", "");
    let _daemon = up(&bed);
    image(&bed, &["build", "tiny", "--wait"]).failed("exit code 3");
    wait_until("the reason is known", || {
        let why = image(&bed, &["why", "tiny"]).succeeded();
        why.out.contains("exit code 3")
    });
    image(&bed, &["why", "tyni"]).failed("there is no image tyni");
    image(&bed, &["build", "tyni"]).failed("there is no image tyni");
}

/// The one build that is not among these.
fn new_build(bed: &Bed, known: &[&str]) -> String {
    image(bed, &["build", "tiny", "--wait"]).succeeded();
    let builds = image(bed, &["builds", "--format", "json"])
        .succeeded()
        .json();
    let ids = builds.as_array().unwrap().iter();
    let mut ids = ids.map(|row| row["id"].as_str().unwrap());
    ids.find(|id| !known.contains(id)).unwrap().to_owned()
}

#[test]
fn is_pinned_rolled_back_and_let_go_by_command() {
    let bed = bed();
    let _daemon = up(&bed);
    let first = new_build(&bed, &[]);
    image(&bed, &["rollback", "tiny"]).failed("no earlier build");
    let second = new_build(&bed, &[&first]);
    let id = |build: &str| build.rsplit('-').next().unwrap().to_owned();
    let why = || image(&bed, &["why", "tiny"]).succeeded().out;
    let taken_back = format!("build {} was taken back", id(&second));

    // Each of them says what is used from now on.
    let says = |args: &[&str], build: &str, why: &str| {
        let said = image(&bed, args).succeeded().out;
        let expected = format!("launches in somewhere use {}, {why}\n", id(build));
        assert_eq!(said, expected);
    };
    let rolled_back = "the newest that was not taken back";
    says(&["rollback", "tiny"], &first, rolled_back);
    assert!(why().contains(&taken_back), "{}", why());
    let used = format!("launches there use {}, {rolled_back}", id(&first));
    assert!(why().contains(&used), "{}", why());
    image(&bed, &["rollback", "tiny"]).failed("no earlier build");
    says(&["unpin", "tiny"], &second, "the newest");
    assert!(!why().contains("taken back"), "{}", why());
    image(&bed, &["unpin", "tyni"]).failed("there is no image tyni");

    says(&["pin", &first], &first, "which the image is pinned to");
    let pinned = format!("pinned to build {}", id(&first));
    assert!(why().contains(&pinned), "{}", why());
    // It would change nothing, and say that it did.
    image(&bed, &["rollback", "tiny"]).failed("`nodeyard image unpin tiny` first");
    assert!(!why().contains("taken back"), "{}", why());
    image(&bed, &["unpin", "tiny"]).succeeded();
    assert!(!why().contains("pinned"), "{}", why());
    image(&bed, &["rollback", "tiny"]).succeeded();
    assert!(why().contains(&taken_back), "{}", why());

    let nothing = format!("tiny-{}", "0".repeat(32));
    image(&bed, &["pin", &nothing]).failed("is no build that is ready");
}
