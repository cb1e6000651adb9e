//! The Python programs that `make testbeds` has installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The root of the environment with schemathesis.
pub fn schemathesis() -> Result<PathBuf> {
    environment("schemathesis")
}

/// The root of the environment with `program` (`nodepool` or `zuul`).
pub(crate) fn environment(program: &str) -> Result<PathBuf> {
    find("python/install.sh", &["--find", program])
}

/// Ansible's program, as a complete Zuul uses it.
pub fn ansible_playbook() -> Result<PathBuf> {
    let root = find("zuul/install.sh", &["--find"])?;
    let versions = fs::read_dir(&root)?.filter_map(Result::ok);
    let mut programs = versions.map(|version| version.path().join("bin/ansible-playbook"));
    let program = programs.find(|program| program.is_file());
    program.with_context(|| format!("there is no ansible-playbook in {}", root.display()))
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

/// The directory of this crate, where the scripts are.
pub(crate) fn testbeds() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
