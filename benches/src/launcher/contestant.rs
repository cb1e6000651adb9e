//! The two launchers as processes, and what they take of the machine.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nodeyard_model::layout;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{TreePath, ext};
use nodeyard_testbeds::{Launcher, LauncherOptions, ZooKeeperServer, checkout};
use tokio::time::{Instant, sleep_until};

use super::zuul::Zuul;
use crate::zookeeper;

/// Whether what is measured is worth to be recorded.
pub(crate) const OPTIMISED: bool = !cfg!(debug_assertions);
/// Clock ticks in which Linux counts the time of processes.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Python,
    Ours,
}

impl Who {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Python => "Python",
            Who::Ours => "Nodeyard",
        }
    }
}

/// The ring in which both meet: one ZooKeeper server for all rows.
pub(crate) struct Arena {
    pub(crate) server: ZooKeeperServer,
    binary: PathBuf,
}

/// A launcher and a requestor on an empty store.
pub(crate) struct Bout {
    pub(crate) launcher: Launcher,
    pub(crate) zuul: Arc<Zuul>,
}

impl Arena {
    pub(crate) fn new(program: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self {
            server: ZooKeeperServer::start()?,
            binary: self::program(program)?,
        })
    }

    /// On an empty store.
    pub(crate) async fn begin(&self, who: Who, configuration: &str) -> anyhow::Result<Bout> {
        let zuul = self.clear().await?;
        let launcher = self.launch(who, configuration)?;
        Ok(Bout { launcher, zuul })
    }

    /// Empties the store, so that also the remains of a launcher that was killed go.
    pub(crate) async fn clear(&self) -> anyhow::Result<Arc<Zuul>> {
        let tree = self.session().await?;
        for path in [layout::NODEPOOL, layout::NODEYARD] {
            ext::delete_recursive(&*tree, &TreePath::new(path)?).await?;
        }
        ext::ensure_path(&*tree, &TreePath::new(layout::NODES)?).await?;
        Ok(Arc::new(Zuul::new(tree).await?))
    }

    pub(crate) async fn session(&self) -> anyhow::Result<Arc<ZooKeeper>> {
        zookeeper::connect(&self.server, true).await
    }

    pub(crate) fn launch(&self, who: Who, configuration: &str) -> anyhow::Result<Launcher> {
        let options = self.options(who, configuration);
        let options = match who {
            Who::Python => options.with_roomy_cloud(),
            Who::Ours => options,
        };
        Launcher::start(&self.server, &options)
    }

    /// A launcher that finds its cluster in this kubeconfig.
    pub(crate) fn launch_in_cluster(
        &self,
        who: Who,
        configuration: &str,
        kubeconfig: &Path,
    ) -> anyhow::Result<Launcher> {
        let kubeconfig = kubeconfig.display().to_string();
        let options = self.options(who, configuration);
        Launcher::start(&self.server, &options.env("KUBECONFIG", kubeconfig))
    }

    pub(crate) fn options<'a>(&'a self, who: Who, configuration: &'a str) -> LauncherOptions<'a> {
        match who {
            Who::Python => LauncherOptions::python(configuration),
            Who::Ours => LauncherOptions::nodeyard(&self.binary, configuration),
        }
    }

    /// How many transactions the server has done so far.
    pub(crate) fn transactions(&self) -> anyhow::Result<u64> {
        let answer = self.server.ask("srvr")?;
        let number = answer
            .lines()
            .find_map(|line| line.strip_prefix("Zxid: 0x"));
        let number = u64::from_str_radix(number.context("no zxid")?.trim(), 16)?;
        // The upper half counts the elections of leaders.
        Ok(number & 0xffff_ffff)
    }
}

impl Bout {
    pub(crate) async fn end(self) {
        self.launcher.kill();
        self.zuul.close().await;
    }

    /// Lets the launcher end by itself: what watches it at work tells only then what it saw.
    pub(crate) async fn end_in_order(self) {
        self.launcher.terminate();
        self.zuul.close().await;
    }
}

/// Seconds of processor time that a process has used.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program is in parentheses and may contain anything.
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let tick = |index: usize| -> anyhow::Result<f64> {
        Ok(fields.get(index).context("stat is short")?.parse()?)
    };
    Ok((tick(11)? + tick(12)?) / TICKS_PER_SECOND)
}

/// Follows what a process computes that does next to nothing: in clock ticks that could not be told from nothing.
///
/// Linux counts nanoseconds for each thread and forgets them with it. So this is to be looked at now and then; what a
/// thread did between the last look and its end is missing.
#[derive(Debug)]
pub(crate) struct Meter {
    tasks: PathBuf,
    threads: HashMap<OsString, u64>,
    /// Of threads whose number was given away again.
    before: u64,
}

impl Meter {
    pub(crate) fn new(pid: u32) -> Self {
        Self {
            tasks: format!("/proc/{pid}/task").into(),
            threads: HashMap::new(),
            before: 0,
        }
    }

    /// Seconds of processor time so far.
    pub(crate) fn look(&mut self) -> anyhow::Result<f64> {
        for thread in std::fs::read_dir(&self.tasks)? {
            let thread = thread?;
            // It may have ended by now.
            let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let computed = text.split_whitespace().next();
            let computed: u64 = computed.context("schedstat is empty")?.parse()?;
            let last = self.threads.insert(thread.file_name(), computed);
            self.before += last.filter(|last| *last > computed).unwrap_or(0);
        }
        let total = self.before + self.threads.values().sum::<u64>();
        Ok(Duration::from_nanos(total).as_secs_f64())
    }

    /// Seconds of processor time that the process uses in a time.
    pub(crate) async fn measure(&mut self, time: Duration) -> anyhow::Result<f64> {
        const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
        let before = self.look()?;
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep_until(end.min(Instant::now() + BETWEEN_LOOKS)).await;
            self.look()?;
        }
        Ok(self.look()? - before)
    }
}

/// Megabytes of memory that a process has.
pub(crate) fn memory(pid: u32) -> anyhow::Result<f64> {
    megabytes(pid, "VmRSS:")
}

/// Megabytes of memory that a process shares with nothing: neither with others nor with a file.
pub(crate) fn own_memory(pid: u32) -> anyhow::Result<f64> {
    megabytes(pid, "RssAnon:")
}

/// Megabytes of memory that a process had at most, since it was started.
pub(crate) fn most_memory(pid: u32) -> anyhow::Result<f64> {
    megabytes(pid, "VmHWM:")
}

fn megabytes(pid: u32, key: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes = kilobytes.with_context(|| format!("no {key} in the status of {pid}"))?;
    Ok(kilobytes.parse::<f64>()? * 1024.0 / 1e6)
}

/// The one that was named, or else the one that belongs to this source.
pub(crate) fn program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(named) = named else {
        return build();
    };
    let program = named.canonicalize();
    program.with_context(|| format!("cannot measure {}", named.display()))
}

/// The binary as it is now, never one that was left from before; optimised if this program is.
fn build() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = checkout().join("Cargo.toml");
    let profile = if OPTIMISED { "release" } else { "dev" };
    let status = Command::new(cargo)
        .args(["build", "--profile", profile, "--locked", "--quiet"])
        .args(["--bin", "nodeyard", "--manifest-path"])
        .arg(manifest)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    let here = std::env::current_exe()?;
    let binary = here.with_file_name("nodeyard");
    ensure!(
        binary.exists(),
        "{} is missing: run the benchmark with `cargo run`, for the record with `--release`",
        binary.display()
    );
    Ok(binary)
}

/// Before a launcher that Python takes long to start is given up.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(90);
