//! A file system that fills up soon.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skipped;

/// It is mounted as long as this is there.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where mounting is not possible, which is said loudly.
    pub fn mount(at: &Path, megabytes: usize) -> Option<Self> {
        let size = format!("size={megabytes}m");
        let options = ["-t", "tmpfs", "-o", &size, "small"].map(OsStr::new);
        let is_mounted = fs::create_dir_all(at).is_ok()
            && run("mount", options.into_iter().chain([at.as_os_str()]));
        if !is_mounted {
            skipped("a small disk cannot be mounted", "run it as root");
            return None;
        }
        Some(Self(at.to_owned()))
    }

    /// Says whether that worked.
    #[must_use]
    pub fn remount(&self, how: &str) -> bool {
        let option = format!("remount,{how}");
        let options = ["-o", &option].map(OsStr::new);
        run("mount", options.into_iter().chain([self.0.as_os_str()]))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", [OsStr::new("--lazy"), self.0.as_os_str()]);
    }
}

fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
