//! What a machine is made of, decided before anything is made.

use std::path::{Path, PathBuf};

use nodeyard_driver::Error;
use serde::{Deserialize, Serialize};

/// Formats of disks that machines can boot from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskFormat {
    Qcow2,
    Raw,
}

impl DiskFormat {
    /// QEMU's name of it, which is also the end of file names.
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

/// Everything about a machine that its description does not say.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The image below the machine's own disk, which is never written to.
    pub backing: PathBuf,
    pub format: DiskFormat,
    /// In GiB; a disk is never smaller than its image.
    pub disk_size: Option<u64>,
    /// What boots; the firmware boots the disk if there is none.
    pub kernel: Option<Kernel>,
    pub seed: Seed,
    /// Whether to continue from saved memory.
    pub warm: bool,
    /// The port of the guest that has to be reached.
    pub guest_port: u16,
}

#[derive(Debug, Clone)]
pub struct Kernel {
    pub path: PathBuf,
    pub initrd: Option<PathBuf>,
    pub arguments: Option<Box<str>>,
}

/// What the guest is told about itself.
#[derive(Debug, Clone, Default)]
pub struct Seed {
    pub hostname: Box<str>,
    pub authorized_keys: Vec<Box<str>>,
    /// As the configuration has it, for cloud-init.
    pub userdata: Option<Box<str>>,
    /// Who logs in, where the image's default is somebody else.
    pub username: Option<Box<str>>,
}

pub(crate) fn readable(path: &Path, what: &str) -> Result<(), Error> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(cause) => {
            let path = path.display();
            Err(Error::permanent(format!("{what} {path} cannot be read")).because(cause))
        }
    }
}
