//! Loading a cached view of 100,000 nodes from the embedded store.
//!
//! The load happens in a process of its own, so that what it has in memory is the store and the view alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nodeyard_model::{Node, NodeState, Record as _, Timestamp, layout};
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::Registry;
use nodeyard_store::{CreateMode, TreePath, ext};
use serde_json::{Value, json};

use crate::report::Figure;

const NODES: usize = 100_000;
const WINDOW: usize = 4_096;

pub(crate) async fn measure() -> anyhow::Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let store = directory.path().join("store");
    let size = fill(&store).await?;
    let output = Command::new(std::env::current_exe()?)
        .arg("--load-view")
        .arg(&store)
        .output()?;
    ensure!(
        output.status.success(),
        "loading failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let loaded: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| loaded.get(key).and_then(Value::as_f64).context("no figure");
    let (seconds, megabytes) = (number("seconds")?, number("megabytes")?);
    Ok(vec![
        Figure::new(
            format!("loaded from the embedded store, {size} bytes each"),
            format!("{seconds:.2} s"),
        )
        .aim("under 5 s", seconds < 5.0),
        Figure::new(
            "memory of the whole process afterwards",
            format!("{megabytes:.0} MB"),
        )
        .aim("under 300 MB", megabytes < 300.0),
    ])
}

/// The child: loads, and says on standard output what it took.
pub(crate) async fn load(store: PathBuf) -> anyhow::Result<()> {
    let engine = Embedded::open(&store)?;
    let registry = Registry::new(engine.session());
    let started = Instant::now();
    let view = registry.nodes().view()?;
    view.synced().await?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(view.len() == NODES, "{} nodes were loaded", view.len());
    println!(
        "{}",
        json!({"seconds": seconds, "megabytes": resident()? / 1e6})
    );
    Ok(())
}

fn resident() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    Ok(kilobytes * 1024.0)
}

async fn fill(store: &Path) -> anyhow::Result<usize> {
    let engine = Embedded::open(store)?;
    let tree = engine.session();
    let nodes = TreePath::new(layout::NODES)?;
    ext::ensure_path(&*tree, &nodes).await?;
    let mut pending = FuturesUnordered::new();
    let mut size = 0;
    for number in 0..NODES {
        if pending.len() == WINDOW
            && let Some(done) = pending.next().await
        {
            let _created: nodeyard_store::Created = done?;
        }
        let data = node(number)?;
        size = data.len();
        let (tree, path) = (&tree, nodes.unnamed_child());
        pending.push(async move {
            tree.create(&path, data, CreateMode::PersistentSequential)
                .await
        });
    }
    while let Some(done) = pending.next().await {
        done?;
    }
    drop(pending);
    tree.close().await;
    engine.close().await;
    Ok(size)
}

/// A node in use as Zuul leaves it, every one different where they differ in life.
fn node(number: usize) -> anyhow::Result<Bytes> {
    let plain = Node::new(
        NodeState::InUse,
        Timestamp::from_secs(1_700_000_000.0 + number as f64).context("a time")?,
    );
    let mut record: Value = serde_json::from_slice(&plain.to_json())?;
    let fields = record.as_object_mut().context("a node is an object")?;
    let address = format!(
        "10.{}.{}.{}",
        number >> 16,
        (number >> 8) & 255,
        number & 255
    );
    for (key, value) in [
        ("type", json!(["debian-bookworm-large"])),
        ("provider", json!(format!("cloud-{}", number % 7))),
        ("pool", json!("main")),
        ("allocated_to", json!(format!("200-{:010}", number / 2))),
        (
            "launcher",
            json!("np01.example.net-PoolWorker.cloud-main-0123456789abcdef0123456789abcdef"),
        ),
        ("created_time", json!(1_700_000_000.0 + number as f64)),
        (
            "external_id",
            json!(format!("{number:08x}-1b2c-4d3e-8f90-a1b2c3d4e5f6")),
        ),
        ("interface_ip", json!(address)),
        ("public_ipv4", json!(address)),
        ("private_ipv4", json!(address)),
        ("connection_type", json!("ssh")),
        ("connection_port", json!(22)),
        ("username", json!("zuul")),
        ("python_path", json!("auto")),
        (
            "host_keys",
            json!([
                format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:040}"),
                format!("ssh-rsa {number:0300}")
            ]),
        ),
        ("az", json!("nova")),
        (
            "image_id",
            json!(
                "/nodepool/images/debian-bookworm/builds/0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b/providers/cloud/images/0000000001"
            ),
        ),
        (
            "resources",
            json!({"cores": 8, "instances": 1, "ram": 8192}),
        ),
        ("tenant_name", json!("acme")),
        ("requestor", json!("0123456789abcdef0123456789abcdef")),
        (
            "user_data",
            json!({"zuul_system": "0123456789abcdef0123456789abcdef", "project_name": "example.net/acme/widget"}),
        ),
    ] {
        fields.insert(key.to_owned(), value);
    }
    Ok(Bytes::from(serde_json::to_vec(&record)?))
}
