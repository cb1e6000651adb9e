//! Explanations of requests, while they wait and after they ended.

use crate::bed::{Bed, QUICK_CLOUD, Ran, wait_until};

fn explain(bed: &Bed, number: u32, args: &[&str]) -> Ran {
    let request = format!("200-{number:010}");
    let args = ["-c", "nodepool.yaml", "explain", &request]
        .into_iter()
        .chain(args.iter().copied());
    bed.run(args)
}

#[track_caller]
fn says(bed: &Bed, number: u32, text: &str) {
    wait_until(&format!("request {number} says {text:?}"), || {
        explain(bed, number, &[]).out.contains(text)
    });
}

#[test]
fn ended_requests_are_explained_and_failures_also_after_a_restart() {
    let bed = Bed::new();
    let port = bed.free_port().to_string();
    bed.write("nodepool.yaml", QUICK_CLOUD.replace("PORT", &port));
    let mut daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    bed.submit(0, "small");
    bed.submit(1, "nobody-has-this");
    says(&bed, 0, "fulfilled by cloud/main");
    says(&bed, 1, "declined:\n  cloud/main: ");
    let fulfilled = explain(&bed, 0, &["--format", "json"]).succeeded().json();
    assert_eq!(fulfilled["state"], "fulfilled", "{fulfilled}");
    assert_eq!(fulfilled["launched"], 1);
    let failed = explain(&bed, 1, &["--format", "json"]).succeeded();

    assert_eq!(daemon.terminate(), 0);
    let without_launcher = explain(&bed, 1, &["--format", "json"]).succeeded();
    assert_eq!(without_launcher.json(), failed.json());
    assert_eq!(failed.json()["state"], "failed");
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("web pages");
    says(&bed, 1, "nobody-has-this");
    explain(&bed, 2, &[]).failed("no outcome of it");
}

#[test]
fn a_drain_is_named_as_the_reason() {
    let bed = Bed::new();
    let port = bed.free_port().to_string();
    bed.write("nodepool.yaml", QUICK_CLOUD.replace("PORT", &port));
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    for (number, scope) in [["label", "small"], ["pool", "cloud/main"]]
        .iter()
        .enumerate()
    {
        let drain =
            |command: &'static str| bed.run(["-c", "nodepool.yaml", command].iter().chain(scope));
        // What the round before was given is still under way.
        assert_ne!(drain("drain").code, 1);
        let number = u32::try_from(number).unwrap();
        bed.submit(number, "small");
        says(
            &bed,
            number,
            &format!("nodeyard undrain {}", scope.join(" ")),
        );
        drain("undrain").succeeded();
        says(&bed, number, "fulfilled");
    }
}
