//! Writes and locks through our client of ZooKeeper, beside a raw socket on the same server.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nodeyard_store::lock::Locks;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper, ZooKeeperTlsFiles};
use nodeyard_store::{CreateMode, Tree, TreePath, Version};
use nodeyard_testbeds::ZooKeeperServer;

use crate::raw::RawClient;
use crate::report::{Figure, rate};

const WRITES: usize = 60_000;
const WINDOW: usize = 1_000;
/// Alternating rounds, so that a slow moment of the machine meets both sides; the best of each counts.
const ROUNDS: usize = 3;
const LOCKS: usize = 2_000;
/// About what a node record has.
const DATA: usize = 1_300;

pub(crate) async fn measure() -> anyhow::Result<Vec<Figure>> {
    let server = ZooKeeperServer::start()?;
    let record = TreePath::new("/bench")?;
    let data = vec![b'x'; DATA];
    RawClient::connect(server.port())?.create(record.as_str())?;

    let plain = connect(&server, false).await?;
    let secure = connect(&server, true).await?;
    let (mut raw, mut ours, mut ours_tls) = (0_f64, 0_f64, 0_f64);
    for _ in 0..ROUNDS {
        let client = RawClient::connect(server.port())?;
        let (path, bytes) = (record.to_string(), data.clone());
        let round = move || client.sets_per_second(&path, &bytes, WRITES, WINDOW);
        raw = raw.max(tokio::task::spawn_blocking(round).await??);
        ours = ours.max(sets_per_second(&*plain, &record, &data).await?);
        ours_tls = ours_tls.max(sets_per_second(&*secure, &record, &data).await?);
    }
    let share = ours / raw;
    let locks = locks_per_second(&plain).await?;
    plain.close().await;
    secure.close().await;
    Ok(vec![
        Figure::new("pipelined writes of 1,300 bytes, raw socket", rate(raw)),
        Figure::new("the same through our backend", rate(ours))
            .against(format!("{:.0} % of raw", share * 100.0))
            .aim("80 % or more", share >= 0.8),
        Figure::new("the same with TLS", rate(ours_tls))
            .against(format!("{:.0} % of raw", ours_tls / raw * 100.0)),
        Figure::new(
            "lock acquired and released, one after the other",
            rate(locks),
        ),
    ])
}

/// The most that this server does: writes from a raw socket, the best of a few rounds.
pub(crate) async fn pipelined_writes(server: &ZooKeeperServer) -> anyhow::Result<f64> {
    let path = "/bench";
    RawClient::connect(server.port())?.create(path)?;
    let mut best = 0_f64;
    for _ in 0..ROUNDS {
        let client = RawClient::connect(server.port())?;
        let round = move || client.sets_per_second(path, &[b'x'; DATA], WRITES, WINDOW);
        best = best.max(tokio::task::spawn_blocking(round).await??);
    }
    Ok(best)
}

pub(crate) async fn connect(server: &ZooKeeperServer, tls: bool) -> anyhow::Result<Arc<ZooKeeper>> {
    let port = if tls {
        server.tls_port()
    } else {
        server.port()
    };
    let mut options = Options::new(vec![Host::Tcp {
        name: "127.0.0.1".to_owned(),
        port,
    }]);
    if tls {
        let certificates = server.certificates();
        options.tls = Some(ZooKeeperTlsFiles {
            ca: certificates.ca.clone(),
            cert: certificates.client.cert.clone(),
            key: certificates.client.key.clone(),
            verify_hostname: false,
        });
    }
    let client = ZooKeeper::connect(options);
    client.connected(std::time::Duration::from_secs(30)).await?;
    Ok(client)
}

async fn sets_per_second(tree: &dyn Tree, path: &TreePath, data: &[u8]) -> anyhow::Result<f64> {
    let data = Bytes::copy_from_slice(data);
    let started = Instant::now();
    let mut pending = FuturesUnordered::new();
    for _ in 0..WRITES {
        if pending.len() == WINDOW
            && let Some(done) = pending.next().await
        {
            done?;
        }
        pending.push(tree.set(path, data.clone(), Version::Any));
    }
    while let Some(done) = pending.next().await {
        done?;
    }
    Ok(WRITES as f64 / started.elapsed().as_secs_f64())
}

/// Each one its own lock directory that exists already, as the lock of a node is.
pub(crate) async fn locks_per_second<T: Tree>(tree: &Arc<T>) -> anyhow::Result<f64> {
    let tree: Arc<dyn Tree> = Arc::clone(tree) as _;
    let directory = TreePath::new("/bench-lock")?;
    tree.create(&directory, Bytes::new(), CreateMode::Persistent)
        .await?;
    let locks = Locks::new(tree);
    let started = Instant::now();
    for _ in 0..LOCKS {
        let lock = locks.lock(directory.clone());
        let Some(guard) = lock.try_acquire().await? else {
            anyhow::bail!("somebody else holds the lock of the benchmark");
        };
        guard.release().await?;
    }
    Ok(LOCKS as f64 / started.elapsed().as_secs_f64())
}
