//! A complete, unmodified Zuul: scheduler, merger, executor and web, with PostgreSQL and repositories of its own,
//! on the ZooKeeper of a test.
//!
//! A commit that is pushed to the repository of a [`Job`], or to a [`Project`] of the test's own, runs its jobs, by
//! Ansible, on nodes that whoever serves `/nodepool` hands out. Zuul sees the push by polling; the result is read from
//! zuul-web.
//!
//! Needs root, for PostgreSQL's user and for the namespaces that hold the daemons: an executor starts agents and
//! sandboxes that would survive it otherwise. `testbeds/zuul/install.sh` installs what it needs.

mod configuration;
mod database;
mod repositories;
mod web;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::configuration::{JOBS, JOBS_SEEN_BY_EXECUTOR, Settings, TEMPORARY};
use self::database::Database;
use self::web::Web;
use crate::checkout::testbeds;
use crate::process::{Process, enclosed, free_ports, is_root, show, temporary_directory};
use crate::python;
use crate::zookeeper::ZooKeeperServer;

const TENANT: &str = "bed";
const DAEMONS: [&str; 4] = ["scheduler", "merger", "executor", "web"];
const PROGRAMS: &str = "bin";
const START_PATIENCE: Duration = Duration::from_secs(900);
const BUILD_PATIENCE: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Default)]
pub struct ZuulOptions {
    /// Each has a repository of its own. Their names and those of the projects must differ, and `config` is taken.
    pub jobs: Vec<Job>,
    pub projects: Vec<Project>,
    /// Directories with programs that playbooks find on the executor, in their sandboxes too.
    pub programs: Vec<PathBuf>,
    /// The private key that opens the nodes.
    pub ssh_key: PathBuf,
    /// Whether the API is for those only who have a token.
    pub protected: bool,
}

/// A job writes a file on each of its nodes, reads it back, and reports what it saw there: [`Seen`].
#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    /// One node for each label.
    pub labels: Vec<String>,
    /// It does its work all the same.
    pub meant_to_fail: bool,
    /// Makes an image instead, with the roles of this project.
    pub image: Option<ImageJob>,
}

/// A repository with jobs of the test's own making. Their parent is `base`, which does nothing but reach the nodes, or
/// `base-workspace`, which is what a site would have: it uses the roles of this project.
#[derive(Debug, Clone)]
pub struct Project {
    pub name: String,
    /// A directory with all but the definition.
    pub template: PathBuf,
    /// What zuul.yaml says.
    pub definition: String,
}

/// A job that makes a small disk on its first node and publishes it, packed, as an artifact of type `disk`.
#[derive(Debug, Clone)]
pub struct ImageJob {
    /// A directory on the node.
    pub store: PathBuf,
    /// Where its files are served.
    pub url: String,
}

#[derive(Debug, Clone)]
pub struct Push {
    /// That of a [`Job`] has its name.
    pub project: String,
    pub revision: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Build {
    pub uuid: String,
    pub job_name: String,
    /// `SUCCESS`, `FAILURE`, `NODE_FAILURE`…
    pub result: String,
    pub held: bool,
    pub artifacts: Vec<Value>,
}

impl Build {
    /// What a [`Job`] reports; none if it makes an image.
    pub fn nodes(&self) -> Vec<BuildNode> {
        let artifacts = self.artifacts.iter();
        artifacts
            .filter_map(|artifact| BuildNode::deserialize(artifact).ok())
            .collect()
    }

    /// The metadata of the artifact with this name.
    pub fn metadata(&self, name: &str) -> Option<&Value> {
        let mut artifacts = self.artifacts.iter();
        let is_meant = |artifact: &&Value| artifact.get("name").is_some_and(|found| found == name);
        artifacts.find(is_meant)?.get("metadata")
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct BuildNode {
    /// `node1`, `node2`… in the order of the job's labels.
    pub name: String,
    #[serde(rename = "metadata")]
    pub seen: Seen,
}

/// What a job saw on one of its nodes.
#[derive(Debug, Clone, Deserialize)]
pub struct Seen {
    pub hostname: String,
    pub user: String,
    /// Addresses and ports of client and server, as the server sees them.
    pub ssh_connection: String,
    pub label: String,
    pub provider: String,
}

/// A node that belongs to this Zuul, as zuul-web shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct ZuulNode {
    pub id: String,
    pub state: String,
    pub provider: String,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Autohold {
    pub id: String,
    pub job: String,
    /// How many builds it has held nodes of.
    pub current_count: u32,
    pub nodes: Vec<HeldNodes>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct HeldNodes {
    pub build: String,
    /// Their ids.
    pub nodes: Vec<String>,
}

// In the order in which they end.
#[derive(Debug)]
pub struct Zuul {
    daemons: Vec<(&'static str, Process)>,
    _database: Database,
    web: Web,
    finger_port: u16,
    programs: Vec<PathBuf>,
    environment: PathBuf,
    directory: TempDir,
}

impl ZuulOptions {
    /// Their names, without that of the configuration.
    fn repositories(&self) -> impl Iterator<Item = &str> {
        let jobs = self.jobs.iter().map(|job| &*job.name);
        jobs.chain(self.projects.iter().map(|project| &*project.name))
    }
}

impl Zuul {
    /// Returns when a push would be seen.
    pub fn start(zookeeper: &ZooKeeperServer, options: &ZuulOptions) -> Result<Self> {
        ensure!(is_root(), "a complete Zuul needs root on this machine");
        let environment = python::environment("zuul")?;
        let ansible = python::find("zuul/install.sh", &["--find"])?;
        let directory = temporary_directory()?;
        let bed = directory.path();
        // PostgreSQL runs as another user.
        fs::set_permissions(bed, fs::Permissions::from_mode(0o711))?;
        let database = Database::start(&bed.join("database"), &log(bed, "postgresql"))?;
        let [web_port, finger_port] = free_ports()?;
        let settings = Settings {
            zookeeper,
            database_uri: database.uri(),
            web_port,
            finger_port,
            ssh_key: &options.ssh_key,
            programs: &options.programs,
            ansible: &ansible,
            python_base: python_base(&environment)?,
        };
        configuration::write(bed, &settings, options)?;
        repositories::create(bed, options)?;
        copy_ssh_agent(bed)?;

        let mut zuul = Self {
            daemons: Vec::new(),
            _database: database,
            web: Web {
                port: web_port,
                protected: options.protected,
                token: OnceLock::new(),
            },
            finger_port,
            programs: options.programs.clone(),
            environment,
            directory,
        };
        zuul.start_daemons(options)
            .inspect_err(|_| zuul.show_logs())?;
        Ok(zuul)
    }

    fn start_daemons(&mut self, options: &ZuulOptions) -> Result<()> {
        if self.web.protected {
            self.token()?;
        }
        for name in DAEMONS {
            let process = self.start_daemon(name)?;
            self.daemons.push((name, process));
        }
        let deadline = Instant::now() + START_PATIENCE;
        while !self.is_serving(options) {
            for (name, process) in &mut self.daemons {
                ensure!(!process.has_ended(), "zuul-{name} ended while starting");
            }
            ensure!(
                Instant::now() < deadline,
                "Zuul does not serve after {START_PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn start_daemon(&self, name: &str) -> Result<Process> {
        let bed = self.directory.path();
        let python = self.environment.join("bin/python").display().to_string();
        let mut command;
        if name == "executor" {
            let script = format!(r#"mount --bind "$0" {JOBS_SEEN_BY_EXECUTOR} && exec "$@""#);
            command = enclosed("sh");
            command.args(["-c", &script]);
            command.arg(bed.join(JOBS)).arg(python);
        } else {
            command = enclosed(&python);
        }
        command
            .arg(testbeds().join("zuul/run_daemon.py"))
            // -f: stay in the foreground.
            .args([name, "-f", "-c"])
            .arg(bed.join("zuul.conf"))
            .env("TMPDIR", bed.join(TEMPORARY))
            .env("PATH", self.path())
            .current_dir(bed);
        Process::start(command, &self.log(name))
    }

    /// A push counts only from the second time that the scheduler looks at a repository, and zuul-web may be later
    /// than the scheduler.
    fn is_serving(&self, options: &ZuulOptions) -> bool {
        let path = format!("/api/tenant/{TENANT}/builds");
        if self.web.get(&path).is_err() {
            return false;
        }
        let log = fs::read_to_string(self.log("scheduler")).unwrap_or_default();
        options
            .repositories()
            .all(|name| log.contains(&format!("refs for project {name}\n")))
    }

    /// Pushes a commit to the repository of a job or project, which runs it.
    pub fn push(&self, project: &str) -> Result<Push> {
        let revision = repositories::push(self.directory.path(), project)?;
        Ok(Push {
            project: project.to_owned(),
            revision,
        })
    }

    /// Waits until the job that has the name of the project has a result.
    pub fn wait_for_build(&self, push: &Push) -> Result<Build> {
        self.wait_for_build_of(push, &push.project)
    }

    /// Waits until this job of a push has a result.
    pub fn wait_for_build_of(&self, push: &Push, job: &str) -> Result<Build> {
        let build = self.wait_for(push, job, "&complete=true")?;
        serde_json::from_value(build).context("zuul-web shows builds in a way that we do not know")
    }

    /// Waits until this job of a push has begun, and returns the id of its build.
    pub fn wait_for_start_of(&self, push: &Push, job: &str) -> Result<String> {
        let build = self.wait_for(push, job, "")?;
        let id = build.get("uuid").and_then(Value::as_str);
        Ok(id.context("a build without an id")?.to_owned())
    }

    fn wait_for(&self, push: &Push, job: &str, condition: &str) -> Result<Value> {
        let revision = &push.revision;
        let path =
            format!("/api/tenant/{TENANT}/builds?job_name={job}&newrev={revision}{condition}");
        let deadline = Instant::now() + BUILD_PATIENCE;
        loop {
            let builds = self.web.get(&path);
            if let Some(build) = builds.as_ref().ok().and_then(|builds| builds.get(0)) {
                return Ok(build.clone());
            }
            ensure!(
                Instant::now() < deadline,
                "there is no such build of {job} after {BUILD_PATIENCE:?}: {builds:?}"
            );
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// What the console of a running build shows, from its beginning, as the executor serves it.
    pub fn console(&self, build: &str) -> Result<impl Read> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.finger_port))?;
        stream.set_read_timeout(Some(BUILD_PATIENCE))?;
        stream.write_all(format!("{build}\r\n").as_bytes())?;
        Ok(stream)
    }

    /// Keeps the nodes of the next build of this job that fails.
    pub fn autohold(&self, job: &str, reason: &str) -> Result<()> {
        let path = format!("/api/tenant/{TENANT}/project/{job}/autohold");
        let body = json!({
            "job": job,
            "count": 1,
            "change": null,
            "ref": null,
            "reason": reason,
            "node_hold_expiration": 0,
        });
        let token = self.token()?;
        self.web.request("POST", &path, Some(token), Some(&body))?;
        Ok(())
    }

    pub fn autoholds(&self) -> Result<Vec<Autohold>> {
        let answer = self.web.get(&format!("/api/tenant/{TENANT}/autohold"))?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Gives the nodes back that it holds.
    pub fn delete_autohold(&self, id: &str) -> Result<()> {
        let path = format!("/api/tenant/{TENANT}/autohold/{id}");
        let deadline = Instant::now() + BUILD_PATIENCE;
        // While the executor still has the nodes zuul-web says that it did it, and does nothing.
        while self.autoholds()?.iter().any(|autohold| autohold.id == id) {
            ensure!(Instant::now() < deadline, "autohold {id} does not go");
            self.web
                .request("DELETE", &path, Some(self.token()?), None)?;
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// The nodes that were in use by a build or are.
    pub fn nodes(&self) -> Result<Vec<ZuulNode>> {
        let answer = self.web.get(&format!("/api/tenant/{TENANT}/nodes"))?;
        Ok(serde_json::from_value(answer)?)
    }

    pub fn web_port(&self) -> u16 {
        self.web.port
    }

    pub fn tenant(&self) -> &'static str {
        TENANT
    }

    /// The right to change things, from Zuul's own command; with the word `Bearer` before it.
    pub fn token(&self) -> Result<&str> {
        if let Some(token) = self.web.token.get() {
            return Ok(token);
        }
        let output = Command::new(self.environment.join("bin/zuul-admin"))
            .arg("-c")
            .arg(self.directory.path().join("zuul.conf"))
            .args(["create-auth-token", "--auth-config", "operator"])
            .args(["--tenant", TENANT, "--user", "test"])
            .args(["--expires-in", "86400"])
            .output()
            .context("cannot run zuul-admin")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(token) = text.lines().find(|line| line.starts_with("Bearer ")) else {
            bail!(
                "zuul-admin makes no token: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        Ok(self.web.token.get_or_init(|| token.to_owned()))
    }

    fn path(&self) -> OsString {
        let mut path = self.directory.path().join(PROGRAMS).into_os_string();
        let rest = env::var_os("PATH").map(PathBuf::from);
        for place in self.programs.iter().chain(&rest) {
            path.push(":");
            path.push(place);
        }
        path
    }

    /// Of `scheduler`, `merger`, `executor`, `web` or `postgresql`.
    pub fn log(&self, daemon: &str) -> PathBuf {
        log(self.directory.path(), daemon)
    }

    fn show_logs(&self) {
        for name in DAEMONS.into_iter().chain(["postgresql"]) {
            show(&self.log(name));
        }
    }
}

impl Drop for Zuul {
    fn drop(&mut self) {
        if thread::panicking() {
            self.show_logs();
        }
    }
}

fn log(bed: &Path, daemon: &str) -> PathBuf {
    bed.join(format!("{daemon}.log"))
}

/// Debian's agent has rights of its own, so it ignores TMPDIR, and an agent that is killed leaves its directory
/// behind. A copy has no such rights.
fn copy_ssh_agent(bed: &Path) -> Result<()> {
    let copy = bed.join(PROGRAMS).join("ssh-agent");
    fs::create_dir(bed.join(PROGRAMS))?;
    fs::copy("/usr/bin/ssh-agent", &copy).context("cannot copy ssh-agent")?;
    fs::set_permissions(copy, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn python_base(environment: &Path) -> Result<String> {
    let output = Command::new(environment.join("bin/python"))
        .args(["-c", "import sys; print(sys.base_prefix)"])
        .output()?;
    ensure!(output.status.success(), "python: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
