//! The launcher of Python Nodepool, to compare with and to run beside ours.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::process::{Log, Process, tail, temporary_directory, tied};
use crate::python;
use crate::zookeeper::ZooKeeperServer;

/// An unmodified `nodepool-launcher`, connected with TLS.
#[derive(Debug)]
pub struct PythonLauncher {
    process: Process,
    log: Log,
    _directory: TempDir,
}

impl PythonLauncher {
    /// `configuration` is the part of nodepool.yaml that says what there is to hand out; the connection to
    /// ZooKeeper is added. Returns at once: a launcher that starts is no different from one that is slow.
    pub fn start(zookeeper: &ZooKeeperServer, configuration: &str) -> Result<Self> {
        let directory = temporary_directory()?;
        let certificates = zookeeper.certificates();
        let connection = format!(
            "zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}]\n\
             zookeeper-timeout: 10\n\
             zookeeper-tls: {{ca: {ca}, cert: {cert}, key: {key}}}\n",
            port = zookeeper.tls_port(),
            ca = certificates.ca.display(),
            cert = certificates.client.cert.display(),
            key = certificates.client.key.display(),
        );
        let file = directory.path().join("nodepool.yaml");
        fs::write(&file, format!("{connection}{configuration}"))?;

        let program = python::environment("nodepool")?.join("bin/nodepool-launcher");
        let mut command = tied(&program.display().to_string());
        // -d: stay in the foreground.
        command.args(["-d", "--no-webapp", "-c"]).arg(&file);
        command.current_dir(directory.path());
        let path = directory.path().join("nodepool-launcher.log");
        Ok(Self {
            process: Process::start(command, &path)?,
            log: Log { path },
            _directory: directory,
        })
    }

    /// Fails if the launcher has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        ensure!(
            !self.process.has_ended(),
            "nodepool-launcher has ended:\n{}",
            tail(&self.log.path)
        );
        Ok(())
    }

    pub fn log(&self) -> &Path {
        &self.log.path
    }
}
