//! Acknowledged writes of a killed process are durable.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::{CreateMode, Tree, TreePath, Version};

const DIRECTORY: &str = "NODEYARD_TEST_KILLED_STORE";
const WRITERS: u64 = 32;
const ROUNDS: u64 = 8;

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn counter(writer: u64) -> TreePath {
    path(&format!("/counters/{writer}"))
}

/// Increments a record under an ephemeral one and prints each acknowledged number.
async fn count(tree: Arc<dyn Tree>, writer: u64) {
    let lock = path(&format!("/counters/lock-{writer}"));
    let at = counter(writer);
    let mut value: u64 = match tree.get(&at).await {
        Ok(record) => std::str::from_utf8(&record.data).unwrap().parse().unwrap(),
        Err(_) => {
            let zero = Bytes::from_static(b"0");
            tree.create(&at, zero, CreateMode::Persistent)
                .await
                .unwrap();
            0
        }
    };
    loop {
        tree.create(&lock, Bytes::new(), CreateMode::Ephemeral)
            .await
            .unwrap();
        value += 1;
        let data = Bytes::from(value.to_string());
        tree.set(&at, data, Version::Any).await.unwrap();
        let line = format!("acked {writer} {value}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        tree.delete(&lock, Version::Any).await.unwrap();
    }
}

#[test]
#[ignore = "the process that is killed; started by the other test"]
fn writing_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("the other test tells where");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Embedded::open(Path::new(&directory)).unwrap();
        let setup = engine.session();
        // It is there already after the first round.
        let _ = setup
            .create(&path("/counters"), Bytes::new(), CreateMode::Persistent)
            .await;
        let writers = (0..WRITERS).map(|writer| tokio::spawn(count(engine.session(), writer)));
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    });
}

/// Runs the writing process, kills it after a number of acknowledged writes, and returns the last number of each
/// writer.
fn killed_after(answers: u64, directory: &Path) -> HashMap<u64, u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "embedded_kill::writing_until_killed",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acked = HashMap::new();
    let mut seen = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // What it said before it died still comes after the kill.
        let Ok(line) = line else { break };
        let words: Vec<_> = line.split(' ').collect();
        if let ["acked", writer, value] = words[..] {
            acked.insert(writer.parse().unwrap(), value.parse().unwrap());
            seen += 1;
            if seen == answers {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(seen >= answers, "it must not end by itself");
    acked
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut last = HashMap::new();
    for round in 0..ROUNDS {
        last.extend(killed_after(1 + round * 137, directory.path()));
        runtime.block_on(async {
            let engine = Embedded::open(directory.path()).unwrap();
            let tree = engine.session();
            let listing = tree.children(&path("/counters")).await.unwrap();
            assert!(
                listing.names.iter().all(|name| !name.starts_with("lock")),
                "ephemeral records are left: {:?}",
                listing.names
            );
            assert_eq!(listing.names.len(), listing.stat.num_children as usize);
            for (writer, acked) in &last {
                let record = tree.get(&counter(*writer)).await.unwrap();
                let found: u64 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
                assert!(
                    (*acked..=*acked + 1).contains(&found),
                    "writer {writer} was told {acked}, the file says {found}"
                );
                assert_eq!(record.stat.version as u64, found);
            }
            engine.close().await;
        });
    }
}
