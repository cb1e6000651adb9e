//! A real OpenStack on loopback: Keystone, Glance, Placement, Neutron, Nova and Cinder, whose servers nobody boots.
//!
//! Servers become ACTIVE and have ports, addresses and volumes, but there is no hypervisor behind them and no disk: no packet
//! flows and nothing answers. Tokens, policies, quota, scheduling, images and records of all kinds are real.
//!
//! Starting it takes half a minute, so one cloud serves all tests of a machine, also those of other programs and of later
//! runs. It belongs to nobody: see `openstack/cloud.py` for how it comes to an end. Each test has a [`Project`] of its own,
//! and a [`Gateway`] if it wants to count calls or see some of them fail.

mod api;
mod gateway;
mod http;
mod observer;
mod project;
mod region;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

pub use self::api::{Login, Service, Session};
pub use self::gateway::{Answer, Call, Calls, Fault, Gateway, GatewayTls, Passage, Toll};
pub use self::observer::Observer;
pub use self::project::{ApplicationCredential, Project};
pub use self::region::Region;
use crate::process::{enclosed, is_root, tail};
use crate::skipped::skipped;

/// The machine may have a lot to do at the same time.
const START_PATIENCE: Duration = Duration::from_secs(900);

/// It can be used as long as this lives.
#[derive(Debug)]
pub struct OpenStack {
    description: Description,
    root: PathBuf,
    // Shared with all who use the cloud.
    _users: File,
}

/// What a cloud says of itself.
#[derive(Debug, Clone, Deserialize)]
struct Description {
    password: String,
    region: String,
    urls: BTreeMap<Service, String>,
}

impl OpenStack {
    /// None where it cannot be, which is said loudly.
    pub fn start_if_possible() -> Result<Option<Self>> {
        if let Some(obstacle) = obstacle() {
            skipped("OpenStack cannot run on this machine", obstacle);
            return Ok(None);
        }
        Self::start().map(Some)
    }

    /// The cloud that runs already, or a new one.
    pub fn start() -> Result<Self> {
        let place = crate::python::find("openstack/install.sh", &["--find"])?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let base = std::env::temp_dir().join("nodeyard-testbeds");
        fs::create_dir_all(&base)?;
        let root = base.join(format!("openstack-{name}"));

        // One at a time looks for a cloud and makes one.
        let starting = File::create(root.with_added_extension("starting"))?;
        starting.lock()?;
        // While a cloud goes, this waits until it has gone.
        let users = File::create(root.with_added_extension("users"))?;
        users.lock_shared()?;
        let child = match is_alive(&root)? {
            true => None,
            false => Some(start_new(&place, &root)?),
        };
        wait_until_ready(&root, child)?;
        let description = fs::read_to_string(root.join("cloud.json"))
            .context("OpenStack runs but does not say where")?;
        Ok(Self {
            description: serde_json::from_str(&description)?,
            root,
            _users: users,
        })
    }

    /// A project of one's own, with a user, a network, and Nova's ordinary quota.
    pub fn project(&self, purpose: &str) -> Result<Project> {
        Project::create(self, purpose)
    }

    /// Another region in the catalog, which has these services at the gateway, for everybody to see as long as it lives.
    pub fn region(&self, purpose: &str, gateway: &Gateway, services: &[Service]) -> Result<Region> {
        Region::create(self, purpose, gateway, services)
    }

    /// Somebody who may do everything.
    pub fn admin(&self) -> Result<Session> {
        Session::begin(self.url(Service::Identity), &self.login("admin", "admin"))
    }

    pub(crate) fn login(&self, user: &str, project: &str) -> Login {
        Login {
            user: user.to_owned(),
            password: self.description.password.clone(),
            project: project.to_owned(),
            region: self.description.region.clone(),
        }
    }

    /// Where a service is, as the catalog says it.
    pub fn url(&self, service: Service) -> &str {
        self.description
            .urls
            .get(&service)
            .map_or("", String::as_str)
    }

    /// The services that there are.
    pub(crate) fn services(&self) -> impl Iterator<Item = (Service, &str)> {
        let urls = self.description.urls.iter();
        urls.map(|(service, url)| (*service, url.as_str()))
    }

    /// The end of what a part of the cloud has logged, such as `nova-compute`.
    pub fn log(&self, part: &str) -> String {
        tail(&self.root.join("log").join(format!("{part}.log")))
    }
}

/// A name that no other test of this machine has chosen.
fn unique_name(purpose: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::SeqCst);
    format!("{purpose}-{}-{number}", std::process::id())
}

/// Whether somebody holds the lock of a cloud that runs.
fn is_alive(root: &Path) -> Result<bool> {
    match File::create(root.with_added_extension("alive"))?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn start_new(place: &Path, root: &Path) -> Result<Child> {
    // What one that did not end in order has left.
    let _ = fs::remove_file(root.join("cloud.json"));
    let log = File::create(root.with_added_extension("log"))?;
    Command::new(crate::checkout::testbeds().join("openstack/start.sh"))
        .arg(place.join("venv/bin/python"))
        .arg("run")
        .arg(place.join("state"))
        .arg(root)
        // It outlives this process, and what interrupts this process is not for it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot run testbeds/openstack/start.sh")
}

/// The one who has begun to start it may have died meanwhile: it is no child then.
fn wait_until_ready(root: &Path, mut child: Option<Child>) -> Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    while !root.join("cloud.json").exists() {
        let ended = match &mut child {
            Some(child) => child.try_wait()?.is_some(),
            None => !is_alive(root)?,
        };
        ensure!(
            !ended && Instant::now() < deadline,
            "OpenStack does not come up; run testbeds/install.sh\n{}",
            tail(&root.with_added_extension("log"))
        );
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Why there can be no cloud here.
fn obstacle() -> Option<&'static str> {
    if !is_root() {
        return Some("only root can make namespaces for it");
    }
    let namespaces = enclosed("true").status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return Some("this machine does not let us make namespaces");
    }
    None
}
