//! A real ZooKeeper server from Debian's jars, with a plain port and one with TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::process::{Process, free_ports, retried, tail, temporary_directory};

const JARS: &str = "/usr/share/java";
const START_PATIENCE: Duration = Duration::from_secs(300);
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Present a certificate whose name does not fit.
    pub misnamed: bool,
}

/// Sessions may be as short as one second. Data is kept over [`ZooKeeperServer::restart`] and synced to disk.
#[derive(Debug)]
pub struct ZooKeeperServer {
    directory: TempDir,
    port: u16,
    tls_port: u16,
    certificates: Certificates,
    process: Mutex<Option<Process>>,
}

impl ZooKeeperServer {
    pub fn start() -> Result<Self> {
        Self::start_with(&ServerOptions::default())
    }

    pub fn start_with(options: &ServerOptions) -> Result<Self> {
        retried(|| Self::try_start(options))
    }

    fn try_start(options: &ServerOptions) -> Result<Self> {
        let directory = temporary_directory()?;
        let certificates = Certificates::create(&directory.path().join("certificates"))?;
        let server = Self::prepare(options, directory, certificates, "")?;
        server.restart()?;
        Ok(server)
    }

    /// Files and ports, but no process. `more` is added to the configuration.
    pub(crate) fn prepare(
        options: &ServerOptions,
        directory: TempDir,
        certificates: Certificates,
        more: &str,
    ) -> Result<Self> {
        let path = directory.path().display();
        let [port, tls_port] = free_ports()?;
        let identity = if options.misnamed {
            &certificates.misnamed_server
        } else {
            &certificates.server
        };
        fs::create_dir(directory.path().join("data"))?;
        let configuration = format!(
            "tickTime=500\n\
             maxSessionTimeout=120000\n\
             dataDir={path}/data\n\
             clientPortAddress=127.0.0.1\n\
             clientPort={port}\n\
             secureClientPortAddress=127.0.0.1\n\
             secureClientPort={tls_port}\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={server}\n\
             ssl.trustStore.location={ca}\n\
             ssl.clientAuth=need\n\
             admin.enableServer=false\n\
             maxClientCnxns=0\n\
             4lw.commands.whitelist=*\n\
             {more}",
            server = identity.both.display(),
            ca = certificates.ca.display(),
        );
        fs::write(directory.path().join("zoo.cfg"), configuration)?;
        Ok(Self {
            directory,
            port,
            tls_port,
            certificates,
            process: Mutex::new(None),
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Where a stopped server's data is.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops it if it runs, starts it, and waits until it serves.
    pub fn restart(&self) -> Result<()> {
        self.stop();
        self.launch()?;
        self.wait_until_serving()
    }

    /// Starts the process and does not wait.
    pub(crate) fn launch(&self) -> Result<()> {
        let configuration = self.directory.path().join("zoo.cfg");
        let arguments = [
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-Dzookeeper.audit.enable=false",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            &class_path()?,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &configuration.display().to_string(),
        ]
        .map(str::to_owned);
        let process = Process::spawn("java", &arguments, &self.log())?;
        *self.process() = Some(process);
        Ok(())
    }

    pub(crate) fn wait_until_serving(&self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while !self.is_serving() {
            let ended = self.process().as_mut().is_none_or(Process::has_ended);
            ensure!(
                !ended,
                "ZooKeeper ended while starting:\n{}",
                tail(&self.log())
            );
            ensure!(
                Instant::now() < deadline,
                "ZooKeeper does not serve after {START_PATIENCE:?}:\n{}",
                tail(&self.log())
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// It is this server that answers, and not one that took the port first.
    pub(crate) fn is_serving(&self) -> bool {
        let data = self.data().display().to_string();
        let says = |word, text: &str| self.ask(word).is_ok_and(|answer| answer.contains(text));
        says("srvr", "Mode: ") && says("conf", &data)
    }

    /// The answer to one of ZooKeeper's commands of four letters.
    pub fn ask(&self, word: &str) -> Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_PATIENCE)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Ends it in order.
    pub fn stop(&self) {
        if let Some(process) = self.process().take() {
            process.end(Signal::TERM);
        }
    }

    /// Ends it with SIGKILL.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.end(Signal::KILL);
        }
    }

    /// Stops it in its tracks: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &*self.process() {
            process.signal(signal);
        }
    }

    pub fn log(&self) -> PathBuf {
        self.directory.path().join("zookeeper.log")
    }
}

impl Drop for ZooKeeperServer {
    fn drop(&mut self) {
        if thread::panicking() {
            #[expect(
                clippy::print_stderr,
                reason = "the test has failed, and this helps to see why"
            )]
            {
                eprintln!("end of the server's log:\n{}", tail(&self.log()));
            }
        }
    }
}

fn class_path() -> Result<String> {
    const NEEDED: [&str; 8] = [
        "zookeeper",
        "zookeeper-jute",
        "slf4j-api",
        "slf4j-simple",
        "metrics-core",
        "snappy-java",
        "commons-cli",
        "jackson-core",
    ];
    let mut jars = Vec::new();
    for name in NEEDED {
        let jar = Path::new(JARS).join(format!("{name}.jar"));
        if !jar.exists() {
            bail!("{} is missing; run testbeds/install.sh", jar.display());
        }
        jars.push(jar.display().to_string());
    }
    for entry in fs::read_dir(JARS).context("cannot read the directory of jars")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Each is there a second time with its version in the name; the native TLS library is optional, and
        // not all of it is in the package.
        if name.starts_with("netty-")
            && name.ends_with(".jar")
            && !name.ends_with(".Final.jar")
            && !name.contains("tcnative")
        {
            jars.push(path.display().to_string());
        }
    }
    Ok(jars.join(":"))
}
