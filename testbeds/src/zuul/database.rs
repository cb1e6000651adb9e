//! A PostgreSQL server that only this Zuul can reach: it listens on a socket in the directory of the bed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{Process, enclosed, tail};

const START_PATIENCE: Duration = Duration::from_secs(300);
const PROGRAMS: &str = "/usr/lib/postgresql";
/// The server refuses to run as root.
const USER: &str = "postgres";

#[derive(Debug)]
pub(super) struct Database {
    process: Process,
    directory: PathBuf,
    log: PathBuf,
}

impl Database {
    /// `directory` is made; its parent must let everybody through.
    pub(super) fn start(directory: &Path, log: &Path) -> Result<Self> {
        let programs = newest_programs()?;
        fs::create_dir(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        let (user, group) = user_and_group()?;
        chown(directory, Some(user), Some(group))?;

        let data = directory.join("data");
        let mut initdb = Command::new("setpriv");
        initdb
            .args(as_user(user, group))
            .arg(programs.join("initdb"))
            .args(["--username=zuul", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data)
            .current_dir(directory);
        let output = initdb.output().context("cannot run initdb")?;
        ensure!(
            output.status.success(),
            "initdb failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );

        let mut command = enclosed("setpriv");
        command
            // The namespace's first process would forget whose death to follow when it changes its user.
            .args(["--pdeathsig", "KILL"])
            .args(as_user(user, group))
            .arg(programs.join("postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(directory)
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .args(["-c", "shared_buffers=16MB", "-c", "max_connections=60"])
            .current_dir(directory);
        let mut database = Self {
            process: Process::start(command, log)?,
            directory: directory.to_owned(),
            log: log.to_owned(),
        };
        database.wait_until_serving(&programs)?;
        Ok(database)
    }

    fn wait_until_serving(&mut self, programs: &Path) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let answer = Command::new(programs.join("pg_isready"))
                .arg("-q")
                .arg("-h")
                .arg(&self.directory)
                .status()?;
            if answer.success() {
                return Ok(());
            }
            ensure!(
                !self.process.has_ended() && Instant::now() < deadline,
                "PostgreSQL does not serve:\n{}",
                tail(&self.log)
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What Zuul calls `dburi`.
    pub(super) fn uri(&self) -> String {
        format!(
            "postgresql://zuul@/postgres?host={}",
            self.directory.display()
        )
    }
}

fn as_user(user: u32, group: u32) -> [String; 3] {
    [
        format!("--reuid={user}"),
        format!("--regid={group}"),
        "--clear-groups".to_owned(),
    ]
}

fn user_and_group() -> Result<(u32, u32)> {
    let id = |option: &str| -> Result<u32> {
        let output = Command::new("id").args([option, USER]).output()?;
        ensure!(
            output.status.success(),
            "there is no user {USER}; run testbeds/zuul/install.sh"
        );
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    Ok((id("-u")?, id("-g")?))
}

fn newest_programs() -> Result<PathBuf> {
    fs::read_dir(PROGRAMS)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry)))
        .max_by_key(|(version, _)| *version)
        .map(|(_, entry)| entry.path().join("bin"))
        .with_context(|| format!("no PostgreSQL in {PROGRAMS}; run testbeds/zuul/install.sh"))
}
