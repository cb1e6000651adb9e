//! How long it takes to read and check a configuration: `cargo bench -p nodeyard-config`.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nodeyard_config::{Environment, Mode, load_bytes};

const ROUNDS: u32 = 5;

fn main() {
    for labels in [5_000, 50_000] {
        let text = configuration(labels);
        measure(&format!("{labels} labels, {} KiB", text.len() >> 10), &text);
    }
    let line = "  - {name: same, min-ready: 0, max-ready-age: 3600}\n";
    measure(
        "10 MiB of one label",
        &format!("labels:\n{}", line.repeat((10 << 20) / line.len())),
    );
    measure(
        "10 MiB of one key in one line",
        &format!("labels: [{{{}}}]", "a: b, ".repeat((10 << 20) / 6)),
    );
    measure(
        "10 MiB of one scalar",
        &format!("elements-dir: \"{}\"", "a".repeat(10 << 20)),
    );
}

/// The best of a few rounds: the machine is shared, the work is not.
fn measure(what: &str, text: &str) {
    let mut best = Duration::MAX;
    let mut outcome = (0, 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let main = (Path::new("nodepool.yaml"), text.as_bytes());
        let (_, diagnostics) = load_bytes(main, None, &Environment::new(), Mode::Check);
        best = best.min(start.elapsed());
        outcome = (diagnostics.errors, diagnostics.warnings);
    }
    let (errors, warnings) = outcome;
    println!(
        "{what}: {:.1} ms ({errors} errors, {warnings} warnings)",
        best.as_secs_f64() * 1e3
    );
}

/// Labels over ten providers with an image for every hundred labels.
fn configuration(labels: usize) -> String {
    let mut text = String::from("zookeeper-servers: [{host: zk}]\nimages-dir: /srv\nlabels:\n");
    let mut write = |line: String| writeln!(text, "{line}").expect("writing to a string");
    for label in 0..labels {
        write(format!(
            "  - name: label-{label}\n    min-ready: 1\n    max-ready-age: 3600"
        ));
    }
    write("diskimages:".into());
    for image in 0..labels / 100 {
        write(format!(
            "  - name: image-{image}\n    elements: [vm, debian-minimal]\n    env-vars: {{A: b}}"
        ));
    }
    write("providers:".into());
    for provider in 0..10 {
        write(format!(
            "  - name: cloud-{provider}\n    cloud: c\n    diskimages:"
        ));
        for image in 0..labels / 100 {
            write(format!("      - name: image-{image}"));
        }
        write("    pools:\n      - name: main\n        max-servers: 100\n        labels:".into());
        for label in (provider..labels).step_by(10) {
            write(format!(
                "          - name: label-{label}\n            diskimage: image-{}\n            flavor-name: m1\n            min-ram: 8192",
                label / 100
            ));
        }
    }
    text
}
