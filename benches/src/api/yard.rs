//! `nodeyard up` as a process, on one of the stores.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nodeyard_testbeds::ZooKeeperServer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::client::Client;
use crate::launcher::{memory, most_memory};

const TOKEN: &str = "the-token-of-the-benchmark";
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) enum Store<'a> {
    Embedded,
    ZooKeeper(&'a ZooKeeperServer),
}

impl Store<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Store::Embedded => "embedded store",
            Store::ZooKeeper(_) => "ZooKeeper",
        }
    }

    fn configuration(&self) -> String {
        match self {
            Store::Embedded => String::new(),
            Store::ZooKeeper(server) => format!(
                "zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n",
                server.port()
            ),
        }
    }
}

/// Ends with the value at the latest.
pub(super) struct Yard {
    process: Child,
    port: u16,
    _directory: TempDir,
}

impl Yard {
    pub(super) async fn start(binary: &Path, store: &Store<'_>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (port, webapp) = (free_port()?, free_port()?);
        let state = directory.path().join("state");
        let text = format!(
            "{}state-dir: {}\n\
             webapp: {{port: {webapp}, listen_address: 127.0.0.1}}\n\
             api:\n  port: {port}\n  rate-limit: 0\n  \
             tokens: [{{name: bench, token: {TOKEN}, right: request}}]\n{}",
            store.configuration(),
            state.display(),
            crate::launcher::cloud(100)
        );
        let config = directory.path().join("nodepool.yaml");
        std::fs::write(&config, text)?;
        let process = Command::new(binary)
            .arg("-c")
            .arg(&config)
            .arg("up")
            .stderr(Stdio::null())
            .spawn()
            .context("nodeyard does not start")?;
        let yard = Self {
            process,
            port,
            _directory: directory,
        };
        yard.ready().await?;
        Ok(yard)
    }

    /// Returns when it works.
    async fn ready(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            if let Ok(pools) = self.client().call("GET", "/pools", None).await
                && pools
                    .get("items")
                    .and_then(Value::as_array)
                    .is_some_and(|pools| !pools.is_empty())
            {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "nodeyard does not get ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) fn client(&self) -> Client {
        let url = format!("http://127.0.0.1:{}", self.port);
        Client::new(url, TOKEN.to_owned())
    }

    /// Megabytes.
    pub(super) fn memory(&self) -> anyhow::Result<f64> {
        memory(self.process.id())
    }

    /// Megabytes, since it was started.
    pub(super) fn most_memory(&self) -> anyhow::Result<f64> {
        most_memory(self.process.id())
    }

    /// Lets it end by itself: what watches it at work tells only then what it saw.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
