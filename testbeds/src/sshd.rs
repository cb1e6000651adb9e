//! A real OpenSSH server, to log in to as a node of a test.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process::{
    Process, enclosed, free_ports, is_root, retried, tail, temporary_directory, tied,
};

const START_PATIENCE: Duration = Duration::from_secs(300);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const HOST_KEY_TYPES: [&str; 3] = ["ed25519", "ecdsa", "rsa"];

/// Lets the user who runs the test log in with [`Sshd::client_key`], and nobody else. A login sees the files of
/// this machine, but its home is empty, so that nobody's shell profile gets in the way. For root it is a machine of
/// its own otherwise: it has [its own host name](Sshd::hostname), and whatever was started on it ends with it.
#[derive(Debug)]
pub struct Sshd {
    // Before the directory, so that it is gone first.
    process: Process,
    port: u16,
    username: String,
    hostname: String,
    directory: TempDir,
}

impl Sshd {
    pub fn start() -> Result<Self> {
        retried(Self::try_start)
    }

    fn try_start() -> Result<Self> {
        let directory = temporary_directory()?;
        let path = directory.path();
        let [port] = free_ports()?;
        for kind in HOST_KEY_TYPES {
            generate_key(kind, &host_key(path, kind))?;
        }
        generate_key("ed25519", &path.join("client"))?;
        fs::copy(path.join("client.pub"), path.join("authorized_keys"))?;
        fs::create_dir(path.join("home"))?;
        fs::write(path.join("sshd_config"), configuration(path, port))?;

        let program = Path::new("/usr/sbin/sshd");
        ensure!(
            program.exists(),
            "{} is missing; run testbeds/install.sh",
            program.display()
        );
        let hostname;
        let mut command;
        if is_root() {
            // Where the server puts its unprivileged half; Debian makes it when the system's own server starts.
            fs::create_dir_all("/run/sshd")?;
            hostname = format!("node-{port}");
            command = enclosed("sh");
            command.args(["-c", r#"hostname "$0" && exec "$@""#, &hostname]);
            command.arg(program);
        } else {
            hostname = output_of("hostname", &[])?;
            command = tied("/usr/sbin/sshd");
        }
        command.args(["-D", "-e", "-f"]);
        command.arg(path.join("sshd_config"));
        let process = Process::start(command, &path.join("sshd.log"))?;

        let mut sshd = Self {
            process,
            port,
            username: output_of("id", &["-un"])?,
            hostname,
            directory,
        };
        sshd.wait_until_serving()?;
        Ok(sshd)
    }

    fn wait_until_serving(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(
                !self.process.has_ended() && Instant::now() < deadline,
                "sshd does not serve:\n{}",
                tail(&self.log())
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// On 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn username(&self) -> &str {
        &self.username
    }

    /// What `hostname` says after a login.
    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    /// The private key to log in with.
    pub fn client_key(&self) -> PathBuf {
        self.directory.path().join("client")
    }

    /// The public host keys, each as its type and the key itself.
    pub fn host_keys(&self) -> Result<Vec<String>> {
        HOST_KEY_TYPES
            .iter()
            .map(|kind| {
                let path = host_key(self.directory.path(), kind).with_extension("pub");
                let line = fs::read_to_string(path)?;
                let fields: Vec<&str> = line.split_whitespace().take(2).collect();
                Ok(fields.join(" "))
            })
            .collect()
    }

    pub fn log(&self) -> PathBuf {
        self.directory.path().join("sshd.log")
    }
}

fn host_key(directory: &Path, kind: &str) -> PathBuf {
    directory.join(format!("host-{kind}"))
}

fn configuration(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    let host_keys: String = HOST_KEY_TYPES
        .iter()
        .map(|kind| format!("HostKey {directory}/host-{kind}\n"))
        .collect();
    format!(
        "ListenAddress 127.0.0.1\n\
         Port {port}\n\
         {host_keys}\
         AuthorizedKeysFile {directory}/authorized_keys\n\
         PermitRootLogin prohibit-password\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         UsePAM no\n\
         StrictModes no\n\
         PidFile none\n\
         MaxStartups 100\n\
         MaxSessions 100\n\
         PerSourceMaxStartups none\n\
         SetEnv HOME={directory}/home PATH={PATH}\n\
         Subsystem sftp internal-sftp\n"
    )
}

fn generate_key(kind: &str, path: &Path) -> Result<()> {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-N", "", "-C", "", "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .context("cannot run ssh-keygen; run testbeds/install.sh")?;
    ensure!(status.success(), "ssh-keygen: {status}");
    Ok(())
}

fn output_of(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
