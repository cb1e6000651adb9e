//! [`QemuHost`]: the operations on files and processes of the host that the driver is built on.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use nodeyard_driver::{Error, Progress, Tags};
use nodeyard_model::{Resources, Timestamp};
use serde::{Deserialize, Serialize};

use crate::local::ProcessIdentity;
use crate::machine_spec::{DiskFormat, MachineSpec};

/// The id of a machine or an upload. It is never reused, so that it identifies files and processes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalId(Box<str>);

impl LocalId {
    /// Returns a unique id. `prefix` is for people.
    pub fn new(prefix: &str) -> Self {
        let number = uuid::Uuid::new_v4().simple().to_string();
        Self(format!("{prefix}-{number}").into())
    }

    /// Returns None if the id could be a path to another directory.
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        (text.chars().all(allowed) && !text.is_empty() && !text.starts_with('.'))
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

/// The record of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QemuMachine {
    pub id: LocalId,
    /// Its host name.
    pub name: Box<str>,
    pub tags: Tags,
    /// The upload that its disk is based on.
    pub upload: Option<LocalId>,
    pub cpus: u64,
    /// In MiB.
    pub memory: u64,
    /// The MAC address of its network card.
    pub mac: Box<str>,
    pub created: Timestamp,
    /// Excludes the machine from being taken over.
    #[serde(rename = "going")]
    pub deleting: bool,
    /// None before it was started, or if the driver was killed while it started.
    pub process: Option<ProcessIdentity>,
}

impl QemuMachine {
    /// Returns how much of the host the machine uses.
    pub fn cost(&self) -> Resources {
        let to_i64 = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Resources::new(to_i64(self.cpus), 1, to_i64(self.memory))
    }
}

/// The state of a machine and its guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineStatus {
    /// No process runs it.
    Stopped,
    /// QEMU paused the guest for good.
    Failed(GuestFault),
    /// With the address and port to connect to, as soon as they are known.
    Running(Option<GuestEndpoint>),
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
pub struct GuestEndpoint {
    pub address: IpAddr,
    pub port: u16,
}

impl fmt::Display for GuestEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// How to stop a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMethod {
    /// Presses the power button of the guest.
    PowerDown,
    /// Tells QEMU to quit.
    Quit,
    Kill,
}

/// The record of an uploaded image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredUpload {
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
    /// The file is incomplete.
    Pending,
    Active,
    /// No new machine boots from it.
    #[serde(rename = "going")]
    Deleting,
}

/// Files and processes of a host. Every operation is idempotent and can be cancelled.
#[async_trait]
pub trait QemuHost: fmt::Debug + Send + Sync {
    /// Lists the machines in the directory, those of other providers included.
    async fn machines(&self) -> Result<Vec<QemuMachine>, Error>;

    /// Creates or replaces a record.
    async fn write_machine(&self, machine: &QemuMachine) -> Result<(), Error>;

    /// Creates disk and seed and runs the machine, unless it runs already. Returns when QEMU answers.
    async fn start(&self, machine: &QemuMachine, spec: &MachineSpec) -> Result<(), Error>;

    /// Returns the state of the machine, and the address and port that lead to `guest_port`.
    async fn status(&self, machine: &QemuMachine, guest_port: u16) -> Result<MachineStatus, Error>;

    /// Returns whether a process runs the machine.
    async fn is_running(&self, machine: &QemuMachine) -> Result<bool, Error>;

    /// Kills a machine that failed under KVM and makes [`QemuHost::start`] run all machines under TCG. Returns false if
    /// KVM did not run it, or if the configuration requires KVM.
    async fn reject_kvm(&self, machine: &QemuMachine, reason: &str) -> Result<bool, Error>;

    /// Initiates a stop. [`QemuHost::is_running`] tells when the machine has stopped.
    async fn stop(&self, machine: &QemuMachine, method: StopMethod) -> Result<(), Error>;

    /// Removes the files of a stopped machine, and then its record.
    async fn remove_machine(&self, machine: &QemuMachine) -> Result<(), Error>;

    async fn uploads(&self) -> Result<Vec<StoredUpload>, Error>;

    /// Creates or replaces a record.
    async fn write_upload(&self, upload: &StoredUpload) -> Result<(), Error>;

    /// Copies the file of an upload into the directory and marks the upload active.
    async fn store_upload(
        &self,
        upload: &StoredUpload,
        source: &Path,
        progress: &Progress,
    ) -> Result<(), Error>;

    /// Removes the file of an upload, and then its record.
    async fn remove_upload(&self, upload: &StoredUpload) -> Result<(), Error>;

    /// Returns the file of an upload.
    fn upload_path(&self, upload: &StoredUpload) -> PathBuf;

    /// Lists the files that an operator put into the directory.
    async fn image_files(&self) -> Result<Vec<PathBuf>, Error>;

    /// Connects once and returns whether the guest sends something.
    async fn greets(&self, endpoint: GuestEndpoint) -> bool;

    /// Returns the last output of the console and of QEMU.
    async fn evidence(&self, machine: &LocalId) -> Result<String, Error>;

    /// Returns the last output of QEMU.
    async fn qemu_log(&self, machine: &LocalId) -> String;

    /// Returns when the machine may have stopped.
    async fn wait_for_exit(&self, machine: &LocalId);

    /// Returns when the machine may have stopped, or QEMU may have paused its guest for good.
    async fn wait_for_fault(&self, machine: &LocalId);

    /// Removes old files that have no record, and returns how many.
    async fn collect_garbage(&self, now: Timestamp) -> Result<usize, Error>;
}
