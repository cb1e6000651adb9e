//! Runs the program of a build.
//!
//! Both output streams are written to the console in order. The program runs in its own process group, which is killed
//! when the build ends or its future is dropped; processes that left the group are found by their environment. A build
//! therefore always ends, even if a process ignores signals or keeps the output open.
//!
//! To stop a build, SIGTERM is sent to the program alone, because diskimage-builder needs its helpers to unmount; then to the
//! whole group, because a shell that waits for a command does not react; then SIGKILL.
//!
//! Processes that run as root are signalled with sudo. If that is not permitted they keep running, and the log and the
//! error list them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nodeyard_config as config;
use nodeyard_model::child_environment;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::leftovers::{OUTPUT_VARIABLE, kill_leftovers};
use super::progress::{NoProgress, ProgressReader, ProgressScale};
use super::sudo::{self, SignalTarget};
use super::{BuildConsole, BuildOrder, SourceError};

#[cfg(test)]
mod tests;

/// The time between SIGTERM to the program and SIGTERM to its group.
const PROGRAM_GRACE: Duration = Duration::from_secs(30);

/// The time between SIGTERM and SIGKILL to the group.
const GROUP_GRACE: Duration = Duration::from_secs(10);

/// How long output is read after the program has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The time limit for sending a signal with sudo.
const SUDO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for killed processes to disappear, and how often to check.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const KILL_POLL: Duration = Duration::from_millis(20);

const CHUNK: usize = 64 << 10;

/// A program with its arguments and additions to its environment.
#[derive(Debug)]
pub(crate) struct Program {
    name: Box<str>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    grace: (Duration, Duration),
    /// The path of the build's files, by which the processes of the build are found.
    mark: Option<PathBuf>,
}

impl Program {
    /// Parses a command line with shell quoting.
    pub(super) fn new(line: &str) -> Result<Self, SourceError> {
        let mut words = shlex::split(line).unwrap_or_default().into_iter();
        let name = words.next().ok_or(SourceError::NotACommand)?;
        let mut program = Self::named(&name);
        program.arguments = words.map(OsString::from).collect();
        Ok(program)
    }

    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            grace: (PROGRAM_GRACE, GROUP_GRACE),
            mark: None,
        }
    }

    pub(crate) fn arg(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(word.as_ref().to_owned());
        self
    }

    /// Applies the configuration of an image, overriding earlier values.
    pub(super) fn configure(&mut self, order: &BuildOrder, build: &config::BuildConfig) {
        if let Some(path) = &order.elements_path {
            self.env("ELEMENTS_PATH", &**path);
        }
        for (name, value) in &build.env_vars {
            self.env(name, &value.value);
        }
    }

    /// Marks the program and its child processes as belonging to a build.
    pub(super) fn marked(mut self, order: &BuildOrder) -> Self {
        self.env(OUTPUT_VARIABLE, &order.base);
        self.mark = Some(order.base.clone());
        self
    }

    /// Sets a variable; a later value overrides an earlier one.
    pub(super) fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
    }

    fn spawn(&self, output: io::PipeWriter) -> io::Result<Child> {
        let mut command = tokio::process::Command::new(&*self.name);
        child_environment::restrict(command.as_std_mut());
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        command.spawn()
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        let arguments = self.arguments.iter().map(|word| word.to_str().unwrap());
        std::iter::once(&*self.name).chain(arguments)
    }

    #[cfg(test)]
    pub(super) fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment
            .iter()
            .map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap()))
    }
}

/// Runs a program to its end without reading progress from its output.
pub(crate) async fn run_plain(
    program: Program,
    console: &mut BuildConsole,
    stop: &CancellationToken,
) -> Result<(), SourceError> {
    run(program, console, ProgressReader::new(NoProgress), stop).await
}

/// Runs a program to its end.
pub(super) async fn run<S: ProgressScale>(
    program: Program,
    console: &mut BuildConsole,
    mut progress_reader: ProgressReader<S>,
    stop: &CancellationToken,
) -> Result<(), SourceError> {
    let start = |source| SourceError::Start {
        program: program.name.clone(),
        source,
    };
    let (reader, writer) = io::pipe().map_err(start)?;
    let child = program.spawn(writer).map_err(start)?;
    let mut group = ProgramGroup::of(child, program.mark.clone());
    let mut reader = pipe::Receiver::from_owned_fd(reader.into()).map_err(start)?;
    let mut buffer = vec![0; CHUNK];
    let mut open = true;
    let mut stop_deadline: Option<StopDeadline> = None;
    let status = loop {
        let deadline_passed = async {
            match &stop_deadline {
                Some(stop_deadline) => sleep_until(stop_deadline.until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = group.child.wait() => break Some(status),
            read = reader.read(&mut buffer), if open => {
                open = process_output(read, &buffer, console, &mut progress_reader).await;
            }
            () = stop.cancelled(), if stop_deadline.is_none() => {
                stop_deadline = Some(StopDeadline::new(&program, false));
                group.signal_program().await;
            }
            () = deadline_passed => {
                if stop_deadline.is_some_and(|stop_deadline| stop_deadline.group_signalled) {
                    group.signal(Signal::KILL).await;
                    break timeout(KILL_TIMEOUT, group.child.wait()).await.ok();
                }
                stop_deadline = Some(StopDeadline::new(&program, true));
                group.signal(Signal::TERM).await;
            }
        }
    };
    let left = group.end().await;
    if open {
        let drain = async {
            while process_output(
                reader.read(&mut buffer).await,
                &buffer,
                console,
                &mut progress_reader,
            )
            .await
            {}
        };
        // An escaped process may still hold the pipe open.
        let _ = timeout(DRAIN_TIMEOUT, drain).await;
    }
    let left = (!left.is_empty()).then(|| SourceError::StillRuns {
        processes: left.join(", ").into(),
    });
    if let Some(left) = &left {
        tracing::warn!(program = %program.name, error = left as &dyn std::error::Error, "build ended but some of its processes are still running");
        console.write_line(&format!("[nodeyard: {left}]")).await;
    }
    let status = match status {
        Some(status) if stop_deadline.is_none() => status.map_err(start)?,
        _ => return Err(left.unwrap_or(SourceError::Stopped)),
    };
    console
        .write_line(&format!("Exit code: {}", exit_code(status)))
        .await;
    exit_result(&program.name, status)
}

/// The deadline for a program that is being stopped.
#[derive(Debug, Clone, Copy)]
struct StopDeadline {
    until: Instant,
    /// Whether the whole group was signalled.
    group_signalled: bool,
}

impl StopDeadline {
    fn new(program: &Program, group_signalled: bool) -> Self {
        let (alone, together) = program.grace;
        Self {
            until: Instant::now() + if group_signalled { together } else { alone },
            group_signalled,
        }
    }
}

/// Writes output to the console and reads progress from it. Returns `false` at the end of the output.
async fn process_output<S: ProgressScale>(
    read: io::Result<usize>,
    buffer: &[u8],
    console: &mut BuildConsole,
    progress_reader: &mut ProgressReader<S>,
) -> bool {
    let output = match read {
        Ok(length) => buffer.get(..length).unwrap_or_default(),
        Err(_) => &[],
    };
    if let Some((done, all)) = progress_reader.read(output) {
        console.progress(done, all);
    }
    console.write(output).await;
    !output.is_empty()
}

/// Returns the exit code; negative for a signal, as in Python.
fn exit_code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| -signal);
    status.code().or(signal).unwrap_or_default()
}

fn exit_result(program: &str, status: ExitStatus) -> Result<(), SourceError> {
    let program = program.into();
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(SourceError::Exit { program, code }),
        (None, signal) => Err(SourceError::Signal {
            program,
            signal: signal.unwrap_or_default(),
        }),
    }
}

/// A program and its process group. Killed on drop.
#[derive(Debug)]
struct ProgramGroup {
    child: Child,
    id: Option<Pid>,
    mark: Option<PathBuf>,
    ended: bool,
}

impl ProgramGroup {
    fn of(child: Child, mark: Option<PathBuf>) -> Self {
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Self {
            child,
            id,
            mark,
            ended: false,
        }
    }

    async fn signal_program(&self) {
        let Some(id) = self.id else { return };
        // It has not been waited for, so its id has not been reused.
        if kill_process(id, Signal::TERM) == Err(Errno::PERM) {
            signal_with_sudo(SignalTarget::Process(id), Signal::TERM).await;
        }
    }

    /// Signals the whole group. Returns `false` if some processes cannot be signalled.
    async fn signal(&self, signal: Signal) -> bool {
        let Some(id) = self.id else { return true };
        let has_foreign = !self.foreign_processes().await.is_empty();
        // This reaches the whole group, so no process is signalled twice.
        if has_foreign && signal_with_sudo(SignalTarget::Group(id), signal).await {
            return true;
        }
        // It may have ended by itself.
        let _ = kill_process_group(id, signal);
        !has_foreign
    }

    /// Returns the processes of the group that this process may not signal.
    async fn foreign_processes(&self) -> Vec<String> {
        let Some(id) = self.id else { return Vec::new() };
        let foreign_processes = tokio::task::spawn_blocking(move || sudo::foreign_processes(id));
        foreign_processes.await.unwrap_or_default()
    }

    /// Kills the remaining processes of the group and returns those that are still running.
    async fn end(&mut self) -> Vec<String> {
        self.ended = true;
        let reached = self.signal(Signal::KILL).await;
        if let Some(mark) = self.mark.clone() {
            let _ = tokio::task::spawn_blocking(move || kill_leftovers(&mark)).await;
        }
        let until = Instant::now() + KILL_TIMEOUT;
        loop {
            let left = self.foreign_processes().await;
            if left.is_empty() || !reached || Instant::now() >= until {
                return left;
            }
            sleep(KILL_POLL).await;
        }
    }
}

async fn signal_with_sudo(to: SignalTarget, signal: Signal) -> bool {
    let sent = tokio::task::spawn_blocking(move || sudo::signal(to, signal));
    matches!(timeout(SUDO_TIMEOUT, sent).await, Ok(Ok(true)))
}

impl Drop for ProgramGroup {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Some(id) = self.id {
            let _ = kill_process_group(id, Signal::KILL);
            if !sudo::foreign_processes(id).is_empty() {
                std::thread::spawn(move || sudo::signal(SignalTarget::Group(id), Signal::KILL));
            }
        }
        self.mark.as_deref().map(kill_leftovers);
    }
}
