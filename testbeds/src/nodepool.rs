//! Launchers as processes: that of Python Nodepool, to compare with and to run beside ours, and ours.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::checkout::testbeds;
use crate::process::{Log, Process, tail, temporary_directory, tied};
use crate::python;
use crate::zookeeper::ZooKeeperServer;

const PROGRAM: &str = "nodepool-launcher";

/// A `nodepool-launcher`, connected with TLS.
#[derive(Debug)]
pub struct Launcher {
    process: Process,
    log: Log,
    _directory: TempDir,
}

/// What to run, and how. `configuration` is the part of nodepool.yaml that says what there is to hand out; the
/// connection to ZooKeeper is added.
#[derive(Debug, Clone)]
pub struct LauncherOptions<'a> {
    pub configuration: &'a str,
    /// The binary of Nodeyard; without it, Python Nodepool's launcher runs, unmodified.
    pub nodeyard: Option<&'a Path>,
    pub environment: Vec<(&'a str, String)>,
    /// How long the server waits before it takes a launcher that was killed for gone.
    pub session: Duration,
}

impl<'a> LauncherOptions<'a> {
    pub fn python(configuration: &'a str) -> Self {
        Self {
            configuration,
            nodeyard: None,
            environment: Vec::new(),
            session: Duration::from_secs(10),
        }
    }

    pub fn nodeyard(binary: &'a Path, configuration: &'a str) -> Self {
        Self {
            nodeyard: Some(binary),
            ..Self::python(configuration)
        }
    }

    /// The simulated cloud inside Python's launcher gets no limit of its own.
    pub fn with_roomy_cloud(self) -> Self {
        let directory = testbeds().join("python/roomy_cloud");
        let clouds = directory.join("clouds.yaml").display().to_string();
        self.env("PYTHONPATH", directory.display().to_string())
            .env("OS_CLIENT_CONFIG_FILE", clouds)
    }

    pub fn session(mut self, session: Duration) -> Self {
        self.session = session;
        self
    }

    pub fn env(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }
}

impl Launcher {
    /// Returns at once: a launcher that starts is no different from one that is slow.
    pub fn start(zookeeper: &ZooKeeperServer, options: &LauncherOptions<'_>) -> Result<Self> {
        let directory = temporary_directory()?;
        let file = directory.path().join("nodepool.yaml");
        let connection = connection(zookeeper, options.session);
        fs::write(&file, format!("{connection}{}", options.configuration))?;

        let program = match options.nodeyard {
            None => python::environment("nodepool")?.join("bin").join(PROGRAM),
            Some(binary) => link(binary, directory.path())?,
        };
        let mut command = tied(&program.display().to_string());
        // -f: stay in the foreground.
        command.args(["-f", "--no-webapp", "-c"]).arg(&file);
        command.current_dir(directory.path());
        for (name, value) in &options.environment {
            command.env(OsStr::new(name), value);
        }
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
            "{PROGRAM} has ended:\n{}",
            tail(&self.log.path)
        );
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops it in its tracks.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Ends it with SIGKILL: its session lives on until the server has missed it long enough.
    pub fn kill(self) {
        self.process.end(Signal::KILL);
    }

    /// Asks it to end, and waits.
    pub fn terminate(self) {
        self.process.end(Signal::INT);
    }

    pub fn log(&self) -> &Path {
        &self.log.path
    }
}

/// The part of nodepool.yaml that says where ZooKeeper is.
pub fn connection(zookeeper: &ZooKeeperServer, session: Duration) -> String {
    let certificates = zookeeper.certificates();
    format!(
        "zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}]\n\
         zookeeper-timeout: {session}\n\
         zookeeper-tls: {{ca: {ca}, cert: {cert}, key: {key}}}\n",
        session = session.as_secs_f64(),
        port = zookeeper.tls_port(),
        ca = certificates.ca.display(),
        cert = certificates.client.cert.display(),
        key = certificates.client.key.display(),
    )
}

/// Our binary is the program that it is called as.
fn link(binary: &Path, directory: &Path) -> Result<PathBuf> {
    let link = directory.join(PROGRAM);
    std::os::unix::fs::symlink(binary, &link)
        .with_context(|| format!("cannot make {}", link.display()))?;
    Ok(link)
}
