//! gearmand, gear's `geard`, and the tools and scripts that talk to any job server.
//!
//! `testbeds/gearman/install.sh` installs them.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::checkout::testbeds;
use crate::process::{free_port, spawn_from_lasting_thread};

const START_LIMIT: Duration = Duration::from_secs(300);

/// Which job server to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The C server, told to give each job to one worker only.
    Gearmand,
    /// The C server as it comes: it gives the job of a worker that is lost to the next one.
    RequeueingGearmand,
    /// The Python server.
    Geard,
}

/// Files for a server that speaks TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A job server on a loopback port of its own. Dropping it kills it.
#[derive(Debug)]
pub struct ExternalJobServer {
    kind: Kind,
    tls: Option<Tls>,
    port: u16,
    files: tempfile::TempDir,
    child: Option<Child>,
}

impl ExternalJobServer {
    pub fn start(kind: Kind, tls: Option<Tls>) -> Result<Self> {
        let mut server = Self {
            kind,
            tls,
            port: free_port()?,
            files: tempfile::tempdir()?,
            child: None,
        };
        if server.start_again().is_err() {
            // Somebody else may have been faster.
            server.port = free_port()?;
            server.start_again()?;
        }
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process that serves, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server without warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed server again, on the same port and with nothing remembered.
    pub fn start_again(&mut self) -> Result<()> {
        let log = self.files.path().join("log");
        let mut command = match self.kind {
            // Debian's build takes --ssl and then reads the TLS handshake as text.
            Kind::Gearmand | Kind::RequeueingGearmand if self.tls.is_some() => {
                bail!("gearmand of Debian has no TLS")
            }
            Kind::Gearmand => {
                let mut command = self.gearmand();
                command.args(["--job-retries", "1"]);
                command
            }
            Kind::RequeueingGearmand => self.gearmand(),
            Kind::Geard => self.geard(),
        };
        let output = std::fs::File::create(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let mut child =
            spawn_from_lasting_thread(command).with_context(|| missing("a gearman server"))?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                self.child = Some(child);
                return Ok(());
            }
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!(
                    "{:?} did not start ({ended:?}): {log}; {}",
                    self.kind,
                    missing("it")
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn gearmand(&self) -> Command {
        let mut command = tied("gearmand");
        command.args(["--listen", "127.0.0.1", "--log-file", "stderr"]);
        command.args(["--user", "root", "--port", &self.port.to_string()]);
        command.arg("--pid-file").arg(self.files.path().join("pid"));
        command
    }

    fn geard(&self) -> Command {
        let mut command = tied(gear_python());
        command.args(["-c", "from gear.cmd.geard import main; main()", "-d"]);
        command.args([
            "--listen-address",
            "127.0.0.1",
            "-p",
            &self.port.to_string(),
        ]);
        command.arg("--pidfile").arg(self.files.path().join("pid"));
        if let Some(tls) = &self.tls {
            command
                .arg("--ssl-ca")
                .arg(&tls.ca)
                .arg("--ssl-cert")
                .arg(&tls.cert);
            command.arg("--ssl-key").arg(&tls.key);
        }
        command
    }
}

impl Drop for ExternalJobServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A foreign worker or client that runs for a while. Dropping it kills it.
#[derive(Debug)]
pub struct Peer(Child);

impl Peer {
    /// A program that says nothing before it is ready.
    pub fn start(program: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = tied(program);
        command.args(arguments).stdin(Stdio::null());
        let child = spawn_from_lasting_thread(command).with_context(|| missing(program))?;
        Ok(Self(child))
    }

    /// One of the Python scripts beside this crate, once it has said that it is ready.
    pub fn python(script: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = tied(gear_python());
        command
            .arg(self::script(script))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn_from_lasting_thread(command).with_context(|| missing("gear"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() != "ready" {
            let _ = child.kill();
            bail!("{script} said \"{line}\"; {}", missing("gear"));
        }
        Ok(Self(child))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one of the gearman tools to its end.
pub fn tool(program: &str, arguments: &[&str]) -> Result<Output> {
    tied(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| missing(program))
}

/// Runs one of the Python scripts beside this crate to its end.
pub fn python(script: &str, arguments: &[&str]) -> Result<Output> {
    let mut command = tied(gear_python());
    command
        .arg(self::script(script))
        .args(arguments)
        .stdin(Stdio::null());
    command.output().with_context(|| missing("gear"))
}

/// A command that the kernel kills when the thread that started it ends, however that comes about.
fn tied(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

fn script(name: &str) -> PathBuf {
    testbeds().join("gearman").join(name)
}

fn gear_python() -> PathBuf {
    let cache = std::env::var_os("NODEYARD_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let home = std::env::var_os("HOME")
                .map(PathBuf::from)
                .unwrap_or_default();
            home.join(".cache/nodeyard")
        });
    cache.join("gear-0.16.0/bin/python")
}

fn missing(what: &str) -> String {
    format!("cannot start {what}: run `make testbeds` to install what the tests need")
}
