//! The seam between what the driver decides and what happens on the host.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use nodeyard_driver::{Error, Tags};
use nodeyard_model::{Resources, Timestamp};
use serde::{Deserialize, Serialize};

use crate::local::ProcessIdentity;
use crate::recipe::{DiskFormat, Recipe};

/// Names a machine or an upload. Never used again, so that a file or a process with this name is the thing itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalId(Box<str>);

impl LocalId {
    /// `prefix` is for people; a random number makes it unique.
    pub fn new(prefix: &str) -> Self {
        let number = uuid::Uuid::new_v4().simple().to_string();
        Self(format!("{prefix}-{number}").into())
    }

    /// None if it could lead out of its directory.
    pub fn parse(text: &str) -> Option<Self> {
        let sound = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        (text.chars().all(sound) && !text.is_empty() && !text.starts_with('.'))
            .then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LocalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for LocalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The description of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    pub id: LocalId,
    /// Its host name.
    pub name: Box<str>,
    pub tags: Tags,
    /// The upload whose bytes its disk builds on.
    pub upload: Option<LocalId>,
    pub cpus: u64,
    /// In MiB.
    pub memory: u64,
    /// Address of its network card.
    pub mac: Box<str>,
    pub created: Timestamp,
    /// It is being deleted: nobody takes it over any more.
    pub going: bool,
    /// None before it was started, or when we died while we did.
    pub process: Option<ProcessIdentity>,
}

impl Machine {
    pub fn takes(&self) -> Resources {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Resources::new(whole(self.cpus), 1, whole(self.memory))
    }
}

/// How a machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vitals {
    /// No process runs it.
    Down,
    /// QEMU has paused the guest for good.
    Failed(GuestFault),
    /// With the place where its port is reached, as soon as that is known.
    Up(Option<Endpoint>),
}

/// Why QEMU paused a guest, by the names of its run states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuestFault {
    #[error("the accelerator failed to run its guest (QEMU's run state is internal-error)")]
    InternalError,
    #[error("its guest panicked (QEMU's run state is guest-panicked)")]
    Panicked,
    #[error("the disk of this host is full (QEMU's run state is io-error)")]
    HostDiskFull,
    #[error("its disk failed (QEMU's run state is io-error)")]
    IoError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Whether somebody inside the machine has said something on its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answering {
    Yes,
    No,
}

/// Ways to stop a machine, from gentle to certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Asks the guest, as its power button would.
    PowerDown,
    /// Asks QEMU.
    Quit,
    Kill,
}

/// The description of an image of ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upload {
    pub id: LocalId,
    pub name: Box<str>,
    pub format: DiskFormat,
    pub tags: Tags,
    pub metadata: std::collections::BTreeMap<String, String>,
    pub created: Timestamp,
    pub status: UploadStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadStatus {
    /// Its bytes are not all there.
    Pending,
    Active,
    /// It is being deleted: nothing new boots from it.
    Going,
}

/// What the driver asks of the host. Each call does one thing, may be made twice, and may be dropped halfway.
#[async_trait]
pub trait Host: fmt::Debug + Send + Sync {
    /// All machines in the directory, whoever made them.
    async fn machines(&self) -> Result<Vec<Machine>, Error>;

    /// Writes or replaces a description.
    async fn record(&self, machine: &Machine) -> Result<(), Error>;

    /// Makes the disk and the seed anew and runs the machine, unless it runs already. Returns when QEMU answers.
    async fn start(&self, machine: &Machine, recipe: &Recipe) -> Result<(), Error>;

    /// Returns the state of the machine, and where the guest's port is reached.
    async fn look(&self, machine: &Machine, guest_port: u16) -> Result<Vitals, Error>;

    /// Whether a process runs the machine.
    async fn is_up(&self, machine: &Machine) -> Result<bool, Error>;

    /// Ends a machine that failed under KVM and makes [`Host::start`] run it, and all others, without. Returns false
    /// if KVM did not run it, or the configuration asks for KVM.
    async fn reject_kvm(&self, machine: &Machine, reason: &str) -> Result<bool, Error>;

    /// Returns soon; whether the machine has stopped is seen by a look.
    async fn stop(&self, machine: &Machine, how: Stop) -> Result<(), Error>;

    /// Removes the files of a machine that is down, and then its description.
    async fn discard(&self, machine: &Machine) -> Result<(), Error>;

    async fn uploads(&self) -> Result<Vec<Upload>, Error>;

    /// Writes or replaces a description.
    async fn record_upload(&self, upload: &Upload) -> Result<(), Error>;

    /// Brings the bytes of an upload into the directory, all or nothing.
    async fn place(&self, upload: &Upload, source: &std::path::Path) -> Result<(), Error>;

    /// Removes the bytes of an upload, and then its description.
    async fn discard_upload(&self, upload: &Upload) -> Result<(), Error>;

    /// Where the bytes of an upload are.
    fn upload_path(&self, upload: &Upload) -> PathBuf;

    /// Files that an operator has put into the directory.
    async fn files(&self) -> Result<Vec<PathBuf>, Error>;

    /// One try to hear something on a machine's port.
    async fn hear(&self, endpoint: Endpoint) -> Answering;

    /// The end of what the machine and QEMU have written.
    async fn evidence(&self, machine: &LocalId) -> Result<String, Error>;

    /// Returns the end of what QEMU has written.
    async fn log(&self, machine: &LocalId) -> String;

    /// Returns when the machine may have stopped.
    async fn stopped(&self, machine: &LocalId);

    /// Returns when the machine may have stopped, or QEMU may have paused its guest for good.
    async fn halted(&self, machine: &LocalId);

    /// Removes what no description leads to any more; the number of things that went.
    async fn tidy(&self, now: Timestamp) -> Result<usize, Error>;
}
