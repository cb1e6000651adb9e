//! Container runtimes of one's own: images, containers and socket in a directory that goes with them.
//!
//! `testbeds/containers/install.sh` installs them and makes the [root file system](root_filesystem) for containers.

use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{
    Process, enclosed, free_ports, is_root, retried, show, tail, temporary_directory, tied,
};
use crate::skipped::skipped;

const START_PATIENCE: Duration = Duration::from_secs(300);
const EXEC_TRIES: usize = 20;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Podman,
    Docker,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Podman => &["/usr/bin/podman", "/usr/sbin/runc", "/usr/sbin/iptables"],
            Self::Docker => &["/usr/sbin/dockerd", "/usr/sbin/runc", "/usr/sbin/iptables"],
        }
    }
}

/// Serves the Docker API. Containers, and the mounts that they need, end with it, also if the test is killed.
#[derive(Debug)]
pub struct ContainerRuntime {
    kind: Kind,
    // Before the directory, so that it is gone first.
    process: Process,
    directory: TempDir,
}

impl ContainerRuntime {
    /// None where containers cannot run at all, which is said loudly.
    pub fn start_if_possible(kind: Kind) -> Result<Option<Self>> {
        match obstacle(kind) {
            None => Self::start(kind).map(Some),
            Some(obstacle) => {
                let what = format!("{} cannot run on this machine", kind.program());
                skipped(&what, &obstacle);
                Ok(None)
            }
        }
    }

    pub fn start(kind: Kind) -> Result<Self> {
        let directory = temporary_directory()?;
        let path = directory.path();
        // The shell picks up what the containers of a server leave behind when they end; the server does not.
        let mut command = enclosed("sh");
        command.args(["-c", r#""$@" & wait"#, "sh"]);
        // A container that runs out of memory leaves a note where its server was started.
        command.current_dir(path);
        match kind {
            Kind::Podman => serve_podman(&mut command, path)?,
            Kind::Docker => serve_docker(&mut command, path),
        }
        let process = Process::start(command, &path.join("log"))?;
        let mut runtime = Self {
            kind,
            process,
            directory,
        };
        runtime.wait_until_serving()?;
        Ok(runtime)
    }

    fn wait_until_serving(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            ensure!(
                !self.process.has_ended() && Instant::now() < deadline,
                "{} does not serve; run testbeds/install.sh\n{}",
                self.kind.program(),
                tail(&self.log())
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What a person would type after `podman` or `docker`, and what it says.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let program = self.kind.program();
        let mut command = Command::new(program);
        match self.kind {
            Kind::Podman => command.args(["--remote", "--url"]),
            Kind::Docker => command.arg("--host"),
        };
        let output = command
            .arg(format!("unix://{}", self.socket().display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {program}; run testbeds/install.sh"))?;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Runs a command that prints something in a container, and returns what it printed.
    ///
    /// Podman can lose the output of a process that ends before it has attached to it, so a command that printed
    /// nothing is run again.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<String> {
        let arguments = [&["exec", container], command].concat();
        for _ in 0..EXEC_TRIES {
            let output = self.run(&arguments)?;
            if !output.is_empty() {
                return Ok(output);
            }
        }
        bail!("{command:?} printed nothing in container {container}, {EXEC_TRIES} times");
    }

    /// Makes an image of the root file system, under a name.
    pub fn import(&self, name: &str) -> Result<()> {
        let archive = root_filesystem()?;
        let archive = archive.to_string_lossy();
        self.run(&["import", &archive, name]).map(drop)
    }
}

impl Drop for ContainerRuntime {
    fn drop(&mut self) {
        // With them go the addresses and firewall rules that outlive the server.
        if let Ok(containers) = self.run(&["ps", "--all", "--quiet"]) {
            for container in containers.lines() {
                let _ = self.run(&["rm", "--force", container]);
            }
        }
        if thread::panicking() {
            show(&self.log());
        }
    }
}

fn serve_podman(command: &mut Command, path: &Path) -> Result<()> {
    let configuration = path.join("containers.conf");
    fs::write(&configuration, CONFIGURATION)?;
    command
        .env("CONTAINERS_CONF", configuration)
        .args(["podman", "--runtime", "runc", "--root"])
        .arg(path.join("storage"))
        .arg("--runroot")
        .arg(path.join("run"))
        .arg("--tmpdir")
        .arg(path.join("tmp"))
        .args(["system", "service", "--time=0"])
        .arg(format!("unix://{}", path.join("socket").display()));
    Ok(())
}

fn serve_docker(command: &mut Command, path: &Path) {
    command
        .args(["dockerd", "--data-root"])
        .arg(path.join("storage"))
        .arg("--exec-root")
        .arg(path.join("run"))
        .arg("--pidfile")
        .arg(path.join("pid"))
        .arg("--host")
        .arg(format!("unix://{}", path.join("socket").display()));
}

/// A registry without TLS or login, on a loopback port of its own; Docker trusts it, since it is on loopback.
#[derive(Debug)]
pub struct Registry {
    // Before the directory, so that it is gone first.
    _process: Process,
    address: String,
    _directory: TempDir,
}

impl Registry {
    pub fn start() -> Result<Self> {
        retried(|| {
            let directory = temporary_directory()?;
            let path = directory.path();
            let [port] = free_ports()?;
            let address = format!("127.0.0.1:{port}");
            let storage = path.join("storage");
            let configuration = format!(
                "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
                storage.display()
            );
            fs::write(path.join("configuration"), configuration)?;
            let mut command = tied("docker-registry");
            command.arg("serve").arg(path.join("configuration"));
            let mut process = Process::start(command, &path.join("log"))?;
            let deadline = Instant::now() + START_PATIENCE;
            while TcpStream::connect(&address).is_err() {
                ensure!(
                    !process.has_ended() && Instant::now() < deadline,
                    "docker-registry does not serve; run testbeds/install.sh\n{}",
                    tail(&path.join("log"))
                );
                thread::sleep(Duration::from_millis(10));
            }
            Ok(Self {
                _process: process,
                address,
                _directory: directory,
            })
        })
    }

    /// Host and port, as references of images begin.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// A tar archive: busybox, sshd without host keys, and the users `root`, `zuul` and `homeless`, whose home is missing.
pub fn root_filesystem() -> Result<PathBuf> {
    let cache = match std::env::var_os("NODEYARD_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/nodeyard"),
    };
    let archive = cache.join("containers/rootfs-1.tar");
    ensure!(
        archive.exists(),
        "{} is missing; run testbeds/containers/install.sh",
        archive.display()
    );
    Ok(archive)
}

/// Why containers cannot run here.
fn obstacle(kind: Kind) -> Option<String> {
    if !is_root() {
        return Some("only root can make control groups and networks for them".to_owned());
    }
    for program in kind.needs() {
        if !Path::new(program).exists() {
            return Some(format!(
                "{program} is missing; run testbeds/containers/install.sh"
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
