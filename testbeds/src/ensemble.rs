//! Several servers that replicate to each other.

use std::fmt::Write;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::process::{free_ports, retried, temporary_directory};
use crate::zookeeper::{ServerOptions, ZooKeeperServer};

const ELECTION_PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeperServer>,
    certificates: Certificates,
    /// Holds the certificates that all servers share.
    _directory: TempDir,
}

impl Ensemble {
    /// Returns when all of them serve.
    pub fn start(size: usize) -> Result<Self> {
        retried(|| Self::try_start(size))
    }

    fn try_start(size: usize) -> Result<Self> {
        let directory = temporary_directory()?;
        let certificates = Certificates::create(directory.path())?;
        let mut peers = String::from("initLimit=20\nsyncLimit=10\n");
        for id in 1..=size {
            let [quorum, election] = free_ports()?;
            writeln!(peers, "server.{id}=127.0.0.1:{quorum}:{election}")?;
        }
        let servers = (0..size)
            .map(|_| {
                let options = ServerOptions::default();
                ZooKeeperServer::prepare(
                    &options,
                    temporary_directory()?,
                    certificates.clone(),
                    &peers,
                )
            })
            .collect::<Result<Vec<_>>>()?;
        for (id, server) in (1..).zip(&servers) {
            fs::write(server.directory().join("data/myid"), format!("{id}\n"))?;
            server.launch()?;
        }
        for server in &servers {
            server.wait_until_serving()?;
        }
        Ok(Self {
            servers,
            certificates,
            _directory: directory,
        })
    }

    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Waits until there is one.
    pub fn leader(&self) -> Result<&ZooKeeperServer> {
        let deadline = Instant::now() + ELECTION_PATIENCE;
        loop {
            let leads = |server: &&ZooKeeperServer| {
                server
                    .ask("srvr")
                    .is_ok_and(|answer| answer.contains("Mode: leader"))
            };
            if let Some(leader) = self.servers.iter().find(leads) {
                return Ok(leader);
            }
            ensure!(
                Instant::now() < deadline,
                "no leader after {ELECTION_PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}
