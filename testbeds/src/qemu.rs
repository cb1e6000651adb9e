//! A small guest for QEMU.

use std::path::PathBuf;

use anyhow::Result;

/// A directory with `vmlinuz`, `initrd` and `root.ext4`: a machine that takes its host name and the keys of root from
/// its seed, and answers on port 22. QEMU and the guest are installed if they are missing.
pub fn qemu_guest() -> Result<PathBuf> {
    crate::python::find("qemu/install.sh", &[])
}
