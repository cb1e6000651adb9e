//! Drains on the embedded store, whose owner is another process.

use crate::bed::{Bed, QUICK_CLOUD, Ran, wait_until};

fn run(bed: &Bed, args: &[&str]) -> Ran {
    bed.run(["-c", "nodepool.yaml"].iter().chain(args))
}

fn nodes(bed: &Bed) -> Vec<serde_json::Value> {
    bed.rows(&["list"])
}

#[test]
fn a_drain_reports_the_remaining_work() {
    let bed = Bed::new();
    bed.write(
        "nodepool.yaml",
        QUICK_CLOUD.replace("PORT", &bed.free_port().to_string()),
    );
    let mut daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    bed.submit(0, "small");
    wait_until("the request is served", || {
        nodes(&bed).iter().any(|node| node["state"] == "ready")
    });

    let drain = || {
        let ran = run(&bed, &["--format", "json", "drain", "provider", "cloud"]);
        assert_eq!(ran.code, 3, "{ran:#?}");
        ran.json()
    };
    wait_until("the launcher has noticed", || {
        drain()["accepting"] == serde_json::json!([])
    });
    let left = drain();
    assert_eq!(left["drained"], false);
    assert_eq!(left["requests"][0]["id"], "200-0000000000");
    assert_eq!(left["nodes"][0]["pool"], "cloud/main");
    assert_eq!(left["nodes"][0]["allocated_to"], "200-0000000000");
    let ran = run(&bed, &["drain", "provider", "cloud", "--wait=0.1"]);
    assert_eq!(ran.code, 3, "{ran:#?}");
    assert!(ran.err.contains("1 request, 1 node left"), "{ran:#?}");

    // What is asked for now waits, also after a restart.
    bed.submit(1, "small");
    assert_eq!(daemon.terminate(), 0);
    let _daemon = bed.up(&["-c", "nodepool.yaml"]);
    let id = nodes(&bed)[0]["id"].as_str().unwrap().to_owned();
    bed.nodepool(&["delete", &id]).succeeded();
    let ran = run(&bed, &["drain", "ls", "--wait"]).succeeded();
    assert!(ran.out.contains("provider cloud  drained"), "{ran:#?}");
    assert_eq!(nodes(&bed).len(), 0);

    run(&bed, &["undrain", "provider", "cloud"]).succeeded();
    run(&bed, &["undrain", "provider", "cloud"]).failed("is not drained");
    wait_until("the request that waited is served", || {
        nodes(&bed).iter().any(|node| node["state"] == "ready")
    });
}

#[test]
fn a_drain_does_not_wait_for_a_request_that_waits_for_room() {
    let bed = Bed::new();
    let small = QUICK_CLOUD.replace("{name: main,", "{name: main, max-servers: 1,");
    bed.write(
        "nodepool.yaml",
        small.replace("PORT", &bed.free_port().to_string()),
    );
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    let is = |id: &str, state: &str| {
        wait_until(&format!("{id} is {state}"), || {
            let requests = bed.rows(&["request-list"]);
            let request = requests.iter().find(|request| request["id"] == id);
            request.is_some_and(|request| request["state"] == state)
        });
    };
    bed.submit(0, "small");
    is("200-0000000000", "fulfilled");
    bed.submit(1, "small");
    is("200-0000000001", "pending");

    assert_eq!(run(&bed, &["drain", "provider", "cloud"]).code, 3);
    is("200-0000000001", "requested");
    let id = nodes(&bed)[0]["id"].as_str().unwrap().to_owned();
    bed.nodepool(&["delete", &id]).succeeded();
    run(&bed, &["drain", "provider", "cloud", "--wait"]).succeeded();
    run(&bed, &["undrain", "provider", "cloud"]).succeeded();
    is("200-0000000001", "fulfilled");
}

#[test]
fn a_drain_without_a_running_launcher_is_kept_with_a_note() {
    let bed = Bed::new();
    let _daemon = bed.up(&[]);
    let drain = |args: &[&str]| {
        let target = ["--state-dir", "state"];
        bed.run(["drain"].iter().chain(&target).chain(args))
    };
    let ran = drain(&["pool", "cloud/main"]).succeeded();
    assert!(ran.err.contains("no running launcher"), "{ran:#?}");
    let status = drain(&["--format", "json", "ls"]).succeeded().json();
    assert_eq!(status[0]["scope"], "pool cloud/main");
    let ran = drain(&["pool", "main"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("expected <provider>/<pool>"), "{ran:#?}");
}
