//! The specification of a machine, complete before anything is created.

use std::path::{Path, PathBuf};

use nodeyard_driver::Error;
use serde::{Deserialize, Serialize};

/// Disk formats that machines can boot from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskFormat {
    Qcow2,
    Raw,
}

impl DiskFormat {
    /// Returns QEMU's name of the format, which is also the file extension.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "qcow2" => Ok(Self::Qcow2),
            "raw" => Ok(Self::Raw),
            other => Err(Error::permanent(format!(
                "virtual machines do not boot from images of format {other}; build qcow2 or raw"
            ))),
        }
    }
}

/// What a machine is started with, besides its record.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// The backing file of the disk. It is never written to.
    pub backing: PathBuf,
    pub format: DiskFormat,
    /// In GiB. A disk is never smaller than its image.
    pub disk_size: Option<u64>,
    /// None if the firmware boots the disk.
    pub kernel: Option<Kernel>,
    pub seed: Seed,
    /// Whether to start from the saved memory of a template.
    pub warm: bool,
    /// The port of the guest to connect to.
    pub guest_port: u16,
}

#[derive(Debug, Clone)]
pub struct Kernel {
    pub path: PathBuf,
    pub initrd: Option<PathBuf>,
    pub arguments: Option<Box<str>>,
}

/// The data for cloud-init in the guest.
#[derive(Debug, Clone, Default)]
pub struct Seed {
    pub hostname: Box<str>,
    pub authorized_keys: Vec<Box<str>>,
    /// Passed on unchanged.
    pub userdata: Option<Box<str>>,
    /// None for the default user of the image.
    pub username: Option<Box<str>>,
}

pub(crate) fn check_readable(path: &Path, kind: &str) -> Result<(), Error> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let path = path.display();
            Err(Error::permanent(format!("failed to read {kind} {path}")).because(cause))
        }
    }
}
