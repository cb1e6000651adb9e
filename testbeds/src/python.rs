//! The Python programs that `make testbeds` has installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checkout::testbeds;

/// The root of the environment with schemathesis.
pub fn schemathesis() -> Result<PathBuf> {
    environment("schemathesis")
}

/// The directory with the programs of the Ansible that Zuul runs its jobs with.
pub fn ansible() -> Result<PathBuf> {
    let root = find("zuul/install.sh", &["--find"])?;
    let versions = fs::read_dir(&root)?.filter_map(Result::ok);
    let mut directories = versions.map(|version| version.path().join("bin"));
    let directory = directories.find(|directory| directory.join("ansible-playbook").is_file());
    directory.with_context(|| format!("there is no ansible-playbook in {}", root.display()))
}

/// The root of the environment with `program` (`nodepool` or `zuul`).
pub(crate) fn environment(program: &str) -> Result<PathBuf> {
    find("python/install.sh", &["--find", program])
}

/// What an installation script prints as the place of its result.
pub(crate) fn find(script: &str, arguments: &[&str]) -> Result<PathBuf> {
    let output = Command::new(testbeds().join(script))
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run testbeds/{script}"))?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
