//! Removes what a cluster leaves behind, however its test ends: a test's statics are never dropped, and tests are killed.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// Begins to sweep when this process ends, or when it is dropped, which takes until all is clean.
#[derive(Debug)]
pub(super) struct Sweeper(Child);

impl Sweeper {
    pub(super) fn start(directory: &Path, control_group: &str) -> Result<Self> {
        let mut command = Command::new(crate::checkout::testbeds().join("kubernetes/sweep.sh"));
        command.arg(directory).arg(control_group);
        // What interrupts the test is not for it.
        command.process_group(0);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run testbeds/kubernetes/sweep.sh")?;
        Ok(Self(child))
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // It closes the pipe first.
        let _ = self.0.wait();
    }
}
