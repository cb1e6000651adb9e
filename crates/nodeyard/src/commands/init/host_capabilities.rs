//! Detects what this host can run.

use std::path::{Path, PathBuf};

use nodeyard_driver_container::{Runtime, Socket, greet};

use super::LocalDriver;

/// What was found, or how to install it.
#[derive(Debug)]
pub(super) struct HostCapabilities {
    pub(super) runtime: Result<Runtime, String>,
    pub(super) qemu: Result<PathBuf, String>,
    /// The socket of the container runtime according to the environment.
    pub(super) named_socket: Option<String>,
}

/// The variables that name the runtime's socket for the commands of Podman and Docker.
const SOCKET_VARIABLES: [&str; 2] = ["CONTAINER_HOST", "DOCKER_HOST"];

/// The programs that build the image, and their Debian packages.
const IMAGE_TOOLS: [(&str, &str); 2] = [("mmdebstrap", "mmdebstrap"), ("tar", "tar")];
const DISK_TOOLS: [(&str, &str); 6] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("sfdisk", "fdisk"),
    ("mformat", "mtools"),
    ("syslinux", "syslinux"),
    ("/usr/lib/syslinux/mbr/mbr.bin", "syslinux-common"),
    ("qemu-img", "qemu-utils"),
];
const TOOLS_WITHOUT_ROOT: [(&str, &str); 2] = [("fakeroot", "fakeroot"), ("newuidmap", "uidmap")];

impl HostCapabilities {
    pub(super) async fn detect() -> Self {
        let named_socket = SOCKET_VARIABLES
            .into_iter()
            .find_map(|name| std::env::var(name).ok())
            .and_then(|address| address.strip_prefix("unix://").map(ToOwned::to_owned));
        let runtime = greet(Socket::find(named_socket.as_deref())).await;
        Self {
            runtime: runtime.map_err(|error| error.to_string()),
            qemu: qemu(),
            named_socket,
        }
    }

    /// Describes whether a kind of machines is available.
    pub(super) fn describe(&self, driver: LocalDriver) -> String {
        match driver {
            LocalDriver::Container => match &self.runtime {
                Ok(runtime) => format!(
                    "containers: {} {} is running",
                    runtime.name, runtime.version
                ),
                Err(remedy) => format!("containers: not yet: {remedy}"),
            },
            LocalDriver::Qemu => match &self.qemu {
                Ok(path) => format!("virtual machines: found {}", path.display()),
                Err(remedy) => format!("virtual machines: not yet: {remedy}"),
            },
            LocalDriver::Fake => {
                let mut text = "a simulated cloud; it has no machines to log in to".to_owned();
                for remedy in [self.runtime.as_ref().err(), self.qemu.as_ref().err()]
                    .iter()
                    .flatten()
                {
                    text.push_str(&format!("\n  for real ones: {remedy}"));
                }
                text
            }
        }
    }

    /// Returns the Debian packages that are missing for building the image.
    pub(super) fn missing_packages(&self, drivers: &[LocalDriver]) -> Vec<&'static str> {
        let mut tools = IMAGE_TOOLS.to_vec();
        if drivers != [LocalDriver::Container] {
            tools.extend(DISK_TOOLS);
        }
        if !rustix::process::geteuid().is_root() {
            tools.extend(TOOLS_WITHOUT_ROOT);
        }
        let missing = tools.into_iter().filter(|(name, _)| find(name).is_none());
        missing.map(|(_, package)| package).collect()
    }
}

fn qemu() -> Result<PathBuf, String> {
    let architecture = std::env::consts::ARCH;
    let (binary, package) = match architecture {
        "x86_64" => ("qemu-system-x86_64", "qemu-system-x86"),
        other => {
            return Err(format!(
                "the image is made for x86_64, and this host is {other}"
            ));
        }
    };
    for (name, package) in [("qemu-img", "qemu-utils"), (binary, package)] {
        if find(name).is_none() {
            return Err(format!(
                "{name} is not installed; on Debian it is in {package}"
            ));
        }
    }
    find(binary).ok_or_else(|| format!("{binary} is not installed"))
}

/// Finds a program in the path and in the directories for administrators.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|directory| directory.join(program))
        .find(|file: &PathBuf| Path::is_file(file))
}
