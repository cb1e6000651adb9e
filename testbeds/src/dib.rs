//! diskimage-builder, with an element so small that it builds in half a minute.
//!
//! `testbeds/dib/install.sh` installs it. It needs root and loop devices, and what it leaves mounted and attached when
//! it fails has to go before its directory does: below a mount may be this host's own `/dev`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::checkout::testbeds;
use crate::process::is_root;
use crate::python::environment;

/// The element, which takes everything it needs from the environment.
pub const ELEMENT: &str = "nodeyard-tiny";

/// Why diskimage-builder cannot work on this machine; none if it can.
pub fn obstacle() -> Option<&'static str> {
    if !is_root() {
        Some("diskimage-builder needs root")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("diskimage-builder needs loop devices, and this machine has none")
    } else {
        None
    }
}

/// The program. It finds its own parts by PATH, which has to begin with its directory.
pub fn program() -> Result<PathBuf> {
    let program = environment("dib")?.join("bin/disk-image-create");
    if !program.exists() {
        bail!("{} is missing: run `make testbeds`", program.display());
    }
    Ok(program)
}

/// The directory of [`ELEMENT`].
pub fn elements() -> PathBuf {
    testbeds().join("dib/elements")
}

/// A directory in which diskimage-builder may work and fail.
#[derive(Debug)]
pub struct Workspace {
    directory: Option<TempDir>,
    path: PathBuf,
}

impl Workspace {
    pub fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        Ok(Self {
            path: directory.path().to_owned(),
            directory: Some(directory),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts and loop devices that are left in it.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = self.mounts()?;
        left.extend(self.loops()?);
        Ok(left)
    }

    /// The deepest first.
    fn mounts(&self) -> Result<Vec<String>> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let below = points.filter(|point| Path::new(point).starts_with(&self.path));
        let mut below: Vec<String> = below.map(str::to_owned).collect();
        below.sort_unstable_by(|a, b| b.cmp(a));
        Ok(below)
    }

    fn loops(&self) -> Result<Vec<String>> {
        let listed = Command::new("losetup")
            .args([
                "--list",
                "--noheadings",
                "--raw",
                "--output",
                "NAME,BACK-FILE",
            ])
            .output()
            .context("cannot list loop devices")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let ours = listed.lines().filter_map(|line| {
            let (name, file) = line.split_once(' ')?;
            Path::new(file)
                .starts_with(&self.path)
                .then(|| name.to_owned())
        });
        Ok(ours.collect())
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        for mount in self.mounts().unwrap_or_default() {
            let _ = Command::new("umount").args(["--lazy", &mount]).status();
        }
        for device in self.loops().unwrap_or_default() {
            let _ = Command::new("losetup").args(["--detach", &device]).status();
        }
        if let (Some(directory), false) = (
            self.directory.take(),
            self.mounts().is_ok_and(|mounts| mounts.is_empty()),
        ) {
            let _ = directory.keep();
        }
    }
}
