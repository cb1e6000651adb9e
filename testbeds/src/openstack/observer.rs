//! Sees when servers become active, in the cloud's own records and without asking its services for it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{OpenStack, Project};

const EVERY: Duration = Duration::from_millis(20);
const END: &str = "end of the list";

/// Looks until it is dropped.
#[derive(Debug)]
pub struct Observer {
    active: Arc<Mutex<BTreeMap<String, Instant>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    pub fn start(cloud: &OpenStack, project: &Project) -> Result<Self> {
        let mut database = Database::open(cloud)?;
        let query = format!(
            "select uuid from nova_cell1.instances \
             where vm_state = 'active' and project_id = '{}'; select '{END}';",
            project.id()
        );
        // So that a query that does not work is seen here.
        database.ask(&query)?;
        let active = Arc::new(Mutex::new(BTreeMap::new()));
        let ended = Arc::new(AtomicBool::new(false));
        let (seen, end) = (Arc::clone(&active), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::SeqCst) {
                let Ok(servers) = database.ask(&query) else {
                    return;
                };
                let now = Instant::now();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                for server in servers {
                    seen.entry(server).or_insert(now);
                }
                drop(seen);
                thread::sleep(EVERY);
            }
        });
        Ok(Self {
            active,
            ended,
            thread: Some(thread),
        })
    }

    /// When each server of the project was first seen to be active.
    pub fn active(&self) -> BTreeMap<String, Instant> {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.clone()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The client of the database, with a conversation that goes on.
struct Database {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Database {
    fn open(cloud: &OpenStack) -> Result<Self> {
        let mut child = Command::new("mariadb")
            .args(["--no-defaults", "--user=root", "--batch"])
            .args(["--skip-column-names", "--unbuffered"])
            .arg("--socket=run/mariadb.sock")
            .current_dir(&cloud.root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run mariadb; run testbeds/install.sh")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.context("the client has no pipes")?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// The lines of an answer that ends with [`END`].
    fn ask(&mut self, query: &str) -> Result<Vec<String>> {
        writeln!(self.stdin, "{query}")?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line)?;
            ensure!(length > 0, "the client of the database has ended");
            match line.trim_end() {
                END => return Ok(lines),
                line => lines.push(line.to_owned()),
            }
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
