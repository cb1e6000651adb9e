use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use nodeyard_config::{Environment, Mode, load_bytes};

use crate::report::Figure;

const LABELS: usize = 5_000;
const ROUNDS: usize = 5;

pub(crate) fn measure() -> anyhow::Result<Vec<Figure>> {
    let text = configuration()?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let (config, diagnostics) = load_bytes(
            (Path::new("nodepool.yaml"), text.as_bytes()),
            None,
            &Environment::default(),
            Mode::Check,
        );
        best = best.min(started.elapsed().as_secs_f64() * 1000.0);
        ensure!(
            config.is_some() && diagnostics.is_empty(),
            "the configuration of the benchmark is wrong"
        );
    }
    Ok(vec![
        Figure::new(
            format!("parse and check, {} KiB", text.len() / 1024),
            format!("{best:.0} ms"),
        )
        .aim("under 200 ms", best < 200.0),
    ])
}

/// Labels in ten providers, images and inheritance: what a large site has, with everything referred to.
fn configuration() -> anyhow::Result<String> {
    let mut text = String::from("labels:\n");
    for label in 0..LABELS {
        writeln!(
            text,
            "  - {{name: label-{label}, min-ready: {}}}",
            label % 3
        )?;
    }
    text.push_str("diskimages:\n  - {name: base, abstract: true, elements: [vm, simple-init]}\n");
    for image in 0..50 {
        writeln!(
            text,
            "  - {{name: image-{image}, parent: base, release: r{image}, formats: [qcow2]}}"
        )?;
    }
    text.push_str("providers:\n");
    for provider in 0..10 {
        writeln!(
            text,
            "  - name: cloud-{provider}\n    driver: openstack\n    cloud: c\n    diskimages:"
        )?;
        for image in 0..50 {
            writeln!(text, "      - name: image-{image}")?;
        }
        writeln!(
            text,
            "    pools:\n      - name: main\n        max-servers: 100\n        labels:"
        )?;
        for label in (provider..LABELS).step_by(10) {
            writeln!(
                text,
                "          - name: label-{label}\n            diskimage: image-{}\n            min-ram: 8192\n            \
                 key-name: ci\n            instance-properties: {{a: b}}",
                label % 50
            )?;
        }
    }
    Ok(text)
}
