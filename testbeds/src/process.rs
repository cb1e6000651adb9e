//! Child processes that leave nothing behind, and directories that go with them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// A child in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Output goes to the end of the file `log`.
    pub(crate) fn spawn(program: &str, arguments: &[String], log: &Path) -> Result<Self> {
        let mut command = tied(program);
        command.args(arguments);
        Self::start(command, log)
    }

    /// Like [`Process::spawn`], with a command from [`tied`] or [`enclosed`].
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Self::spawn_group(command)
    }

    /// A process that is talked to; what it says on stderr goes to the end of the file `log`.
    pub(crate) fn start_conversation(
        mut command: Command,
        log: &Path,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut process = Self::spawn_group(command)?;
        let pipes = process.child.stdin.take().zip(process.child.stdout.take());
        let (stdin, stdout) = pipes.context("the process has no pipes")?;
        Ok((process, stdin, stdout))
    }

    fn spawn_group(mut command: Command) -> Result<Self> {
        command.process_group(0);
        let text = format!("cannot start {command:?}");
        let child = spawn_from_lasting_thread(command).context(text)?;
        Ok(Self { child })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process_group(pid, signal);
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// False if it has not ended by itself by then.
    pub(crate) fn ends_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    pub(crate) fn end(mut self, signal: Signal) {
        self.signal(signal);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The kernel kills the program when the thread that started it ends, however that comes about.
pub(crate) fn tied(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// Like [`tied`], and nothing that the program starts outlives it, not even what makes itself a daemon: it is the
/// first process of a namespace. It also has shared memory, mounts and a host name of its own. Needs root.
pub(crate) fn enclosed(program: &str) -> Command {
    let mut command = tied("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--ipc", "--uts", "sh", "-c"])
        .arg(r#"mount -t tmpfs tmpfs /dev/shm && exec "$@""#)
        .args(["sh", program]);
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// A test's thread may end long before a server that it started for all tests; this one does not.
pub(crate) fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, result) = mpsc::channel();
    let gone = |_| io::Error::other("the thread that starts processes is gone");
    SPAWNER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .map_err(|_| gone(mpsc::RecvError))?;
    result.recv().map_err(gone)?
}

/// A temporary directory. A server kept in a static is never dropped, so each new directory first removes
/// those of processes that are gone.
pub(crate) fn temporary_directory() -> Result<TempDir> {
    let base = std::env::temp_dir().join("nodeyard-testbeds");
    fs::create_dir_all(&base)?;
    for entry in fs::read_dir(&base)?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next());
        if let Some(pid) = owner.filter(|pid| pid.parse::<u32>().is_ok())
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir_in(base)?)
}

/// Ports that were free a moment ago and that nobody else in this process gets.
///
/// They are below those that the kernel gives to outgoing connections, so that a stopped server finds its port
/// free when it starts again. Another process may still be faster: see [`retried`].
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin far from each other.
    let begin = std::process::id().wrapping_mul(997);
    let mut ports = [0; N];
    for port in &mut ports {
        *port = (0..COUNT)
            .map(|_| begin.wrapping_add(TAKEN.fetch_add(1, Ordering::SeqCst)) % COUNT + FIRST)
            .filter_map(|candidate| u16::try_from(candidate).ok())
            .find(|candidate| TcpListener::bind(("127.0.0.1", *candidate)).is_ok())
            .context("there is no free port")?;
    }
    Ok(ports)
}

/// One of [`free_ports`].
pub fn free_port() -> Result<u16> {
    free_ports().map(|[port]| port)
}

/// Starts something again, with other ports, if someone took one of them meanwhile.
pub(crate) fn retried<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    start().or_else(|_| start()).or_else(|_| start())
}

/// Shows the end of its log if it is dropped because a test has failed. Declare it before what holds the file.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) path: PathBuf,
}

impl Drop for Log {
    fn drop(&mut self) {
        if thread::panicking() {
            show(&self.path);
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a test has failed, and this helps to see why"
)]
pub(crate) fn show(log: &Path) {
    eprintln!("end of {}:\n{}", log.display(), tail(log));
}

/// The last lines of a log, for a message about a failure.
pub(crate) fn tail(log: &Path) -> String {
    const BYTES: u64 = 8 * 1024;
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("(no log: {error})"))
}
