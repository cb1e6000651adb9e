//! What this host can run.

use std::path::{Path, PathBuf};

use nodeyard_driver_container::{Runtime, Socket, greet};

use super::Machines;

/// What was found, or what to do about it.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) runtime: Result<Runtime, String>,
    pub(super) qemu: Result<PathBuf, String>,
    /// The socket of the runtime where a variable names it, as it does for the runtime's own command.
    pub(super) named_socket: Option<String>,
}

/// Variables by which the commands of Podman and Docker find their runtime.
const SOCKET_VARIABLES: [&str; 2] = ["CONTAINER_HOST", "DOCKER_HOST"];

/// Programs that make the image, and the Debian packages that they are in.
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

impl Surroundings {
    pub(super) async fn look() -> Self {
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

    /// One line on a kind of machines.
    pub(super) fn say(&self, machines: Machines) -> String {
        match machines {
            Machines::Container => match &self.runtime {
                Ok(runtime) => format!("containers: {} {} answers", runtime.name, runtime.version),
                Err(remedy) => format!("containers: not yet: {remedy}"),
            },
            Machines::Qemu => match &self.qemu {
                Ok(path) => format!("virtual machines: {} is there", path.display()),
                Err(remedy) => format!("virtual machines: not yet: {remedy}"),
            },
            Machines::Fake => {
                let mut text = "a simulated cloud; nobody can log in to its machines".to_owned();
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

    /// Debian packages without which the image cannot be built.
    pub(super) fn missing_packages(&self, drivers: &[Machines]) -> Vec<&'static str> {
        let mut tools = IMAGE_TOOLS.to_vec();
        if drivers != [Machines::Container] {
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

/// Also where the programs of administrators are, which others do not have in their path.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|directory| directory.join(program))
        .find(|file: &PathBuf| Path::is_file(file))
}
