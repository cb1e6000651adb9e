//! Writes and locks on the embedded store, beside the fsyncs of the same disk.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::lock::Locks;
use nodeyard_store::{CreateMode, Tree, TreePath, Version};

use crate::report::{Figure, rate};

const WRITES_PER_WRITER: usize = 300;
const LOCKS: usize = 5_000;
const DATA: usize = 1_300;

pub(crate) async fn measure() -> anyhow::Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let syncs = syncs_per_second(directory.path())?;
    let engine = Embedded::open(&directory.path().join("store"))?;
    let one = writes_per_second(&engine, 1).await?;
    let many = writes_per_second(&engine, 64).await?;
    let locks = locks_per_second(engine.session()).await?;
    engine.close().await;
    Ok(vec![
        Figure::new("append of 1,300 bytes and fsync, this disk", rate(syncs)),
        Figure::new("durable writes from 1 writer", rate(one))
            .against(format!("{:.2} of one fsync each", one / syncs)),
        Figure::new("durable writes from 64 writers", rate(many))
            .against(format!("{:.1} times 1 writer", many / one)),
        Figure::new(
            "lock acquired and released, one after the other",
            rate(locks),
        ),
    ])
}

/// What the disk gives to the plainest program that is as careful.
fn syncs_per_second(directory: &Path) -> anyhow::Result<f64> {
    let mut file = File::create(directory.join("yardstick"))?;
    let data = vec![b'x'; DATA];
    let started = Instant::now();
    for _ in 0..WRITES_PER_WRITER {
        file.write_all(&data)?;
        file.sync_data()?;
    }
    Ok(WRITES_PER_WRITER as f64 / started.elapsed().as_secs_f64())
}

async fn writes_per_second(engine: &Arc<Embedded>, writers: usize) -> anyhow::Result<f64> {
    let data = Bytes::from(vec![b'x'; DATA]);
    let mut tasks = Vec::new();
    let started = Instant::now();
    for writer in 0..writers {
        let (tree, data) = (engine.session(), data.clone());
        let path = TreePath::new(format!("/writer-{writers}-{writer}"))?;
        tasks.push(tokio::spawn(async move {
            tree.create(&path, Bytes::new(), CreateMode::Persistent)
                .await?;
            for _ in 0..WRITES_PER_WRITER {
                tree.set(&path, data.clone(), Version::Any).await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok((writers * WRITES_PER_WRITER) as f64 / started.elapsed().as_secs_f64())
}

async fn locks_per_second(tree: Arc<dyn Tree>) -> anyhow::Result<f64> {
    let directory = TreePath::new("/bench-lock")?;
    tree.create(&directory, Bytes::new(), CreateMode::Persistent)
        .await?;
    let locks = Locks::new(tree);
    let started = Instant::now();
    for _ in 0..LOCKS {
        let Some(guard) = locks.lock(directory.clone()).try_acquire().await? else {
            anyhow::bail!("somebody else holds the lock of the benchmark");
        };
        guard.release().await?;
    }
    Ok(LOCKS as f64 / started.elapsed().as_secs_f64())
}
