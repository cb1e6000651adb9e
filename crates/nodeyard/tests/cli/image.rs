//! Images: from a program to an upload, and what is said about them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use nodeyard_testbeds::executable;
use serde_json::Value;

use crate::bed::{Bed, read_until, wait_until};

const SOMEWHERE: &str = "{name: somewhere, driver: fake, diskimages: [{name: tiny}], pools: []}";

/// `nodeyard up` with an image that a small program makes.
fn bed() -> Bed {
    bed_with("tiny", SOMEWHERE)
}

/// The same, with these providers.
fn bed_with(image: &str, providers: &str) -> Bed {
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
             diskimages: [{{name: {image}, builder: command, command: {}, formats: [qcow2]}}]\n\
             labels: []\n\
             providers: [{providers}]\n",
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

fn list(bed: &Bed, kind: &str) -> crate::bed::Ran {
    bed.run(["-c", "nodepool.yaml", "--format", "json", kind, "ls"])
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
    let uploads = list(&bed, "upload").succeeded();
    let uploads: Value = serde_json::from_str(&uploads.out).unwrap();
    assert_eq!(uploads[0]["state"], "ready");
    let logs = image(&bed, &["logs", "tiny"]).succeeded();
    assert!(
        logs.out.starts_with("one line of the log\n"),
        "{}",
        logs.out
    );
    // Only commands of the same user reach the private job server.
    let socket = bed.path("images/job-server.sock");
    UnixStream::connect(&socket).unwrap();
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
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
    image(&bed, &["why", "tyni"]).failed("no image tyni");
    image(&bed, &["build", "tyni"]).failed("no image tyni");
}

#[test]
fn has_builds_and_uploads_that_are_shown_and_removed() {
    let bed = bed();
    let _daemon = up(&bed);
    let first = first_build(&bed);
    let run = |args: &[&str]| bed.run(["-c", "nodepool.yaml"].iter().chain(args));
    let images = run(&["image", "ls"]).succeeded().out;
    assert!(
        images.starts_with("IMAGE  STATE  BUILDS  AGE  UPLOADS"),
        "{images}"
    );
    assert!(images.contains("\ntiny   ready  1 "), "{images}");
    let build = run(&["build", "show", &first[..9]]).succeeded().out;
    assert!(build.contains(&first), "{build}");
    let logs = run(&["build", "logs", &first[..9]]).succeeded().out;
    assert!(logs.starts_with("one line of the log\n"), "{logs}");

    let uploads = list(&bed, "upload").succeeded().json();
    let upload = uploads[0]["id"].as_str().unwrap();
    assert_eq!(upload, format!("{first}/somewhere/0000000001"));
    run(&["upload", "rm", upload]).succeeded();
    wait_until("it is uploaded anew", || {
        let uploads = list(&bed, "upload").succeeded().json();
        uploads[0]["id"] != upload && uploads[0]["state"] == "ready"
    });
    image(&bed, &["pause", "tiny"]).succeeded();
    run(&["build", "rm", &first]).succeeded();
    wait_until("the build is gone", || {
        list(&bed, "build").succeeded().json() == serde_json::json!([])
    });
    run(&["build", "rm", &first]).failed("no build");
    image(&bed, &["rm", "tiny"]).failed("no build of tiny");
    let status = run(&["status"]).succeeded().out;
    assert!(status.contains("tiny   missing  0 "), "{status}");
    assert!(status.contains(" paused\n"), "{status}");
    image(&bed, &["unpause", "tiny"]).succeeded();
    wait_until("it is built again", || ids(&bed).len() == 1);
    image(&bed, &["wait", "tiny"]).succeeded();
    let second = ids(&bed).remove(0);
    image(&bed, &["rm", "tiny"]).succeeded();
    wait_until("its build is gone", || !ids(&bed).contains(&second));
}

fn ids(bed: &Bed) -> Vec<String> {
    let builds = list(bed, "build");
    let builds = builds.succeeded().json();
    let rows = builds.as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

/// The one that is made without being asked for.
fn first_build(bed: &Bed) -> String {
    wait_until("the image is uploaded", || {
        let uploads = list(bed, "upload");
        uploads.succeeded().json()[0]["state"] == "ready"
    });
    ids(bed).remove(0)
}

fn second_build(bed: &Bed, first: &str) -> String {
    image(bed, &["build", "tiny", "--wait"]).succeeded();
    ids(bed).into_iter().find(|id| id != first).unwrap()
}

#[test]
fn is_pinned_rolled_back_and_let_go_by_command() {
    let bed = bed();
    let _daemon = up(&bed);
    let first = first_build(&bed);
    image(&bed, &["rollback", "tiny"]).failed("no earlier build");
    let second = second_build(&bed, &first);
    let id = |build: &str| build.rsplit('-').next().unwrap().to_owned();
    let why = || image(&bed, &["why", "tiny"]).succeeded().out;
    let taken_back = format!("build {} was rolled back", id(&second));

    // Each of them says what is used from now on.
    let says = |args: &[&str], build: &str, why: &str| {
        let said = image(&bed, args).succeeded().out;
        let expected = format!("launches in somewhere use {}, {why}\n", id(build));
        assert_eq!(said, expected);
    };
    let rolled_back = "the newest that was not rolled back";
    says(&["rollback", "tiny"], &first, rolled_back);
    assert!(why().contains(&taken_back), "{}", why());
    let used = format!("launches there use {}, {rolled_back}", id(&first));
    assert!(why().contains(&used), "{}", why());
    image(&bed, &["rollback", "tiny"]).failed("no earlier build");
    says(&["unpin", "tiny"], &second, "the newest");
    assert!(!why().contains("rolled back"), "{}", why());
    image(&bed, &["unpin", "tyni"]).failed("no image tyni");

    says(&["pin", &first], &first, "which the image is pinned to");
    let pinned = format!("pinned to build {}", id(&first));
    assert!(why().contains(&pinned), "{}", why());
    // It would change nothing, and say that it did.
    image(&bed, &["rollback", "tiny"]).failed("`nodeyard image unpin tiny` first");
    assert!(!why().contains("rolled back"), "{}", why());
    image(&bed, &["unpin", "tiny"]).succeeded();
    assert!(!why().contains("pinned"), "{}", why());
    image(&bed, &["rollback", "tiny"]).succeeded();
    assert!(why().contains(&taken_back), "{}", why());

    let nothing = format!("tiny-{}", "0".repeat(32));
    image(&bed, &["pin", &nothing]).failed("no ready build");
}

#[test]
fn with_a_blank_in_its_name_is_built_and_uploaded() {
    let provider = "{name: some where, driver: fake, diskimages: [{name: win 2022}], pools: []}";
    let bed = bed_with("win 2022", provider);
    let _daemon = up(&bed);
    let waited = image(&bed, &["build", "win 2022", "--wait"]).succeeded();
    assert!(waited.err.contains("is ready"), "{}", waited.err);
}

#[test]
fn is_not_waited_for_where_its_uploads_are_paused() {
    let elsewhere =
        "{name: elsewhere, driver: fake, diskimages: [{name: tiny, pause: true}], pools: []}";
    let bed = bed_with("tiny", &format!("{SOMEWHERE}, {elsewhere}"));
    let _daemon = up(&bed);
    let waited = image(&bed, &["build", "tiny", "--wait"]).succeeded();
    let said = "is ready; uploads to elsewhere are paused\n";
    assert!(waited.err.ends_with(said), "{}", waited.err);
    let uploads = list(&bed, "upload").succeeded();
    let uploads = uploads.json();
    let providers = uploads.as_array().unwrap().iter();
    let mut providers = providers.map(|row| row["provider"].as_str().unwrap());
    assert!(providers.all(|provider| provider == "somewhere"));
}

/// Whether a worker follows a log for somebody now.
fn is_followed(bed: &Bed) -> bool {
    let mut server = UnixStream::connect(bed.path("images/job-server.sock")).unwrap();
    server.write_all(b"status\n").unwrap();
    let mut said = String::new();
    while !said.ends_with("\n.\n") {
        let mut part = [0; 4096];
        let length = server.read(&mut part).unwrap();
        said.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    let mut functions = said
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    functions.any(|columns| columns[0].starts_with("image-info:") && columns[2] != "0")
}

#[test]
fn has_a_log_that_is_followed_while_it_is_built() {
    let mut bed = bed();
    bed.set("NODEPOOL_TEST_FOLLOW_LIMIT", "0.5");
    // The second line is not complete before there is a file.
    executable(
        &bed.path("make-image"),
        "#!/bin/sh\n\
         echo one; printf 'two '\n\
         while [ ! -e \"$HOME/go-on\" ]; do sleep 0.05; done\n\
         echo three\n\
         echo x > \"$NODEYARD_OUTPUT.qcow2\"\n",
    )
    .unwrap();
    let _daemon = up(&bed);
    wait_until("the build has begun", || {
        let mut logs = fs::read_dir(bed.path("logs"))
            .into_iter()
            .flatten()
            .flatten();
        logs.any(|log| fs::read_to_string(log.path()).is_ok_and(|text| text == "one\ntwo "))
    });
    let follow = || {
        let mut follow = bed.command();
        follow.args(["-c", "nodepool.yaml", "image", "logs", "-f", "tiny"]);
        let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(read_until(&mut follow, "one"), "one\n");
        follow
    };
    // Those who are interrupted are in nobody's way.
    for _ in 0..5 {
        let mut interrupted = follow();
        interrupted.kill().unwrap();
        interrupted.wait().unwrap();
    }
    wait_until("nobody follows", || !is_followed(&bed));
    let mut follows = follow();
    // It asks again when the worker has ended the first answer.
    wait_until("the worker has ended an answer", || !is_followed(&bed));
    wait_until("the worker is asked again", || is_followed(&bed));
    bed.write("go-on", "");
    let mut rest = String::new();
    let out = follows.stdout.as_mut().unwrap();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "two three\nExit code: 0\n");
    assert!(follows.wait().unwrap().success());
}

#[test]
fn has_its_log_from_the_server_where_its_worker_is() {
    let bed = bed();
    let known = bed.free_port();
    let config = fs::read_to_string(bed.path("nodepool.yaml")).unwrap();
    let listen = format!("gearman-listen: {{port: {known}}}\n");
    bed.write("nodepool.yaml", config.clone() + &listen);
    let _daemon = up(&bed);
    image(&bed, &["build", "tiny", "--wait"]).succeeded();
    // The worker does not know the first of these servers.
    let listen = bed.free_port();
    let deserted = format!("gearman-listen: {{port: {listen}}}\n");
    let other = format!(
        "state-dir: other\nimages-dir: other-images\n{deserted}\
         webapp: {{port: {}, listen_address: 127.0.0.1}}\nbuilder-webapp: {{port: {}}}\n",
        bed.free_port(),
        bed.free_port()
    );
    bed.write("other.yaml", other);
    let other = bed.start("other-log", ["-c", "other.yaml", "up"]);
    other.wait_for_log("job server ready");
    let servers = format!(
        "gearman-servers: [{{host: 127.0.0.1, port: {listen}}}, {{host: 127.0.0.1, port: {known}}}]\n"
    );
    // Where the command itself finds no logs.
    let config = config.replace("build-log-dir: logs", "build-log-dir: elsewhere");
    bed.write("both.yaml", config + &servers);
    let logs = bed
        .run(["-c", "both.yaml", "image", "logs", "tiny"])
        .succeeded();
    assert!(
        logs.out.starts_with("one line of the log\n"),
        "{}",
        logs.out
    );
}
