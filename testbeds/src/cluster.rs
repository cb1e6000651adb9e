//! A Kubernetes cluster of one's own, with one node that runs real pods.
//!
//! It lives in namespaces of its own. What it starts, mounts, and changes about the network ends with it, also if the
//! test is killed; its control groups and its directory are swept up then. Its node, its pods and its services have
//! addresses that this machine, and nobody else, can reach.
//!
//! Where `KUBECONFIG` is set, tests use that cluster instead, and everything in it stays as it is.

mod files;
mod network;
mod openshift;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

pub use self::openshift::OpenShift;

use self::network::Network;
use self::sweep::Sweeper;
use crate::process::{Process, enclosed, is_root, retried, show, tail, temporary_directory, tied};
use crate::skipped::skipped;

const START_PATIENCE: Duration = Duration::from_secs(180);
const CONTROL_GROUP: &str = "nodeyard-testbed-";
const IMAGES: &str = "images-2";
const LOGS: [&str; 4] = ["kube-apiserver", "kubelet", "containerd", "start"];

#[derive(Debug)]
pub struct Cluster {
    // None for a cluster that was there already.
    own: Option<Own>,
    program: PathBuf,
    kubeconfig: PathBuf,
}

#[derive(Debug)]
struct Own {
    // They go in this order: nothing can be swept up while the cluster runs.
    process: Process,
    _sweeper: Sweeper,
    directory: TempDir,
}

impl Cluster {
    /// None where there is no cluster and none can be made, which is said loudly.
    pub fn start_if_possible() -> Result<Option<Self>> {
        if let Some(obstacle) = obstacle() {
            skipped("Kubernetes cannot run on this machine", &obstacle);
            return Ok(None);
        }
        Self::start().map(Some)
    }

    pub fn start() -> Result<Self> {
        let (place, program) = installed()?;
        if let Some(kubeconfig) = std::env::var_os("KUBECONFIG") {
            return Ok(Self {
                own: None,
                program,
                kubeconfig: kubeconfig.into(),
            });
        }
        retried(|| Self::start_own(&place, &program, false))
    }

    /// One of its own in any case, whose API server keeps [a record](Self::audit_log) of every call.
    pub fn start_audited() -> Result<Self> {
        let (place, program) = installed()?;
        retried(|| Self::start_own(&place, &program, true))
    }

    fn start_own(place: &Path, program: &Path, audited: bool) -> Result<Self> {
        let directory = temporary_directory()?;
        let path = directory.path();
        let network = Network::choose()?;
        files::write(path, &network)?;
        if audited {
            files::write_audit_policy(path)?;
        }
        let control_group = directory
            .path()
            .file_name()
            .map(|name| format!("{CONTROL_GROUP}{}", name.to_string_lossy()))
            .context("a temporary directory has no name")?;
        let sweeper = Sweeper::start(path, &control_group)?;
        let mut command = tied("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--ipc", "--uts", "--net"])
            .arg(crate::checkout::testbeds().join("kubernetes/start.sh"))
            .arg(path)
            .arg(program)
            .arg(place.join(IMAGES))
            .env("ADDRESS", network.node())
            .env("PREFIX", network::PREFIX)
            .env("GATEWAY", network.host())
            .env("POD_NET", network.pods())
            .env("SERVICE_NET", network.services())
            .env("CGROUP", &control_group);
        let process = Process::start(command, &path.join("start.log"))?;
        network.connect(process.pid())?;
        let mut own = Own {
            process,
            _sweeper: sweeper,
            directory,
        };
        own.wait_until_ready()?;
        Ok(Self {
            program: program.to_owned(),
            kubeconfig: own.directory.path().join("admin.kubeconfig"),
            own: Some(own),
        })
    }

    /// For somebody who may do everything.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The directory with `kubectl`, and all that it needs.
    pub fn programs(&self) -> PathBuf {
        self.program.with_file_name("")
    }

    /// A line of JSON for each call: who, what, when. Only where that was asked for.
    pub fn audit_log(&self) -> Option<PathBuf> {
        let own = self.own.as_ref()?;
        Some(own.directory.path().join("audit.log"))
    }

    /// An image of the cluster with git, Python, an SSH server and a registry for images. It starts the SSH
    /// server, on port 22.
    pub fn image(&self) -> String {
        std::env::var("NODEYARD_NODE_IMAGE").unwrap_or_else(|_| "localhost/node:1".to_owned())
    }

    /// Whether it was made for this test, and its services can be reached from here.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// What a person would type after `kubectl`, and what it says.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .kubectl_command()
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run kubectl; run testbeds/install.sh")?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    pub fn has_namespace(&self, name: &str) -> Result<bool> {
        let asked = ["get", "namespace", name, "--ignore-not-found", "-o", "name"];
        Ok(!self.kubectl(&asked)?.is_empty())
    }

    /// `kubectl`, for this cluster.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("kubectl").env("KUBECONFIG", &self.kubeconfig);
        command
    }
}

impl Own {
    fn wait_until_ready(&mut self) -> Result<()> {
        let path = self.directory.path();
        let deadline = Instant::now() + START_PATIENCE;
        while !path.join("ready").exists() {
            ensure!(
                !self.process.has_ended() && Instant::now() < deadline,
                "the cluster does not come up; run testbeds/install.sh\n{}",
                LOGS.map(|log| tail(&path.join(format!("{log}.log"))))
                    .join("\n---\n")
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if thread::panicking() {
            for log in LOGS {
                show(&self.directory.path().join(format!("{log}.log")));
            }
        }
    }
}

/// Where everything is, and the program that is every part of a cluster.
fn installed() -> Result<(PathBuf, PathBuf)> {
    let place = crate::python::find("kubernetes/install.sh", &[])?;
    let program = place.join("cluster");
    Ok((place, program))
}

/// Why there can be no cluster here.
fn obstacle() -> Option<String> {
    if std::env::var_os("KUBECONFIG").is_some() {
        return None;
    }
    if !is_root() {
        return Some("only root can make control groups and networks for it".to_owned());
    }
    let namespaces = enclosed("true").status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return Some("this machine does not let us make namespaces".to_owned());
    }
    None
}
