//! A small guest for QEMU.

use std::path::PathBuf;

use anyhow::Result;

/// A directory with `vmlinuz`, `initrd` and `root.ext4`: a machine that takes its host name and the keys of root from
/// its seed, and answers on port 22. QEMU and the guest are installed if they are missing.
pub fn qemu_guest() -> Result<PathBuf> {
    crate::python::find("qemu/install.sh", &[])
}

/// The disk of a Debian as `nodeyard init` has it built; it boots by itself and knows templates.
pub fn qemu_debian() -> Result<PathBuf> {
    crate::python::find("qemu/debian.sh", &[])
}

/// The same with cloud-init, which then does what the other does by itself.
pub fn qemu_debian_with_cloud_init() -> Result<PathBuf> {
    crate::python::find("qemu/debian.sh", &["cloud-init"])
}
