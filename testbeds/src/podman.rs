//! A Podman of its own: images, containers and socket in a directory that goes with it.
//!
//! `testbeds/podman/install.sh` installs it and makes the [root file system](root_filesystem) for its containers.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process::{Process, enclosed, is_root, show, tail, temporary_directory};

const START_PATIENCE: Duration = Duration::from_secs(60);

/// Serves the Docker API. Containers, and the mounts that they need, end with it, also if the test is killed.
#[derive(Debug)]
pub struct Podman {
    // Before the directory, so that it is gone first.
    process: Process,
    directory: TempDir,
}

impl Podman {
    /// None where containers cannot run at all, which is said loudly.
    #[expect(clippy::print_stderr, reason = "whoever reads the tests must see it")]
    pub fn start_if_possible() -> Result<Option<Self>> {
        let podman = match obstacle() {
            Some(obstacle) => Err(obstacle),
            None => Ok(Self::start()?),
        };
        match podman {
            Ok(podman) => Ok(Some(podman)),
            Err(obstacle) => {
                eprintln!("SKIPPED: no containers on this machine: {obstacle}");
                Ok(None)
            }
        }
    }

    pub fn start() -> Result<Self> {
        let directory = temporary_directory()?;
        let path = directory.path();
        fs::write(path.join("containers.conf"), CONFIGURATION)?;
        // The shell picks up what the containers of a server leave behind when they end; the server does not.
        let mut command = enclosed("sh");
        command
            .env("CONTAINERS_CONF", path.join("containers.conf"))
            .args(["-c", r#""$@" & wait"#, "sh", "podman"])
            .args(["--runtime", "runc", "--root"])
            .arg(path.join("storage"))
            .arg("--runroot")
            .arg(path.join("run"))
            .arg("--tmpdir")
            .arg(path.join("tmp"))
            .args(["system", "service", "--time=0"])
            .arg(format!("unix://{}", path.join("socket").display()));
        let process = Process::start(command, &path.join("log"))?;
        let mut podman = Self { process, directory };
        podman.wait_until_serving()?;
        Ok(podman)
    }

    fn wait_until_serving(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            ensure!(
                !self.process.has_ended() && Instant::now() < deadline,
                "podman does not serve; run testbeds/install.sh\n{}",
                tail(&self.log())
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What a person would type after `podman`, and what it says.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("podman")
            .args(["--remote", "--url"])
            .arg(format!("unix://{}", self.socket().display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run podman; run testbeds/install.sh")?;
        ensure!(
            output.status.success(),
            "podman {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Makes an image of the root file system, under a name.
    pub fn import(&self, name: &str) -> Result<()> {
        let archive = root_filesystem()?;
        let archive = archive.to_string_lossy();
        self.run(&["import", &archive, name]).map(drop)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // With them go the addresses and firewall rules that outlive the server.
        let _ = self.run(&["rm", "--all", "--force", "--time", "0"]);
        if thread::panicking() {
            show(&self.log());
        }
    }
}

/// A tar archive: busybox, sshd without host keys, and the users `root`, `zuul` and `homeless`, whose home is missing.
pub fn root_filesystem() -> Result<PathBuf> {
    let cache = match std::env::var_os("NODEYARD_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/nodeyard"),
    };
    let archive = cache.join("podman/rootfs-1.tar");
    ensure!(
        archive.exists(),
        "{} is missing; run testbeds/podman/install.sh",
        archive.display()
    );
    Ok(archive)
}

/// Why containers cannot run here.
fn obstacle() -> Option<String> {
    if !is_root() {
        return Some("only root can make control groups and networks for them".to_owned());
    }
    for program in ["/usr/bin/podman", "/usr/sbin/runc", "/usr/sbin/iptables"] {
        if !Path::new(program).exists() {
            return Some(format!(
                "{program} is missing; run testbeds/podman/install.sh"
            ));
        }
    }
    let namespaces = enclosed("true").status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return Some("this machine does not let us make namespaces".to_owned());
    }
    None
}

const CONFIGURATION: &str = r#"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"#;
