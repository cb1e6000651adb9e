//! The command line of QEMU.
//!
//! QEMU runs in the directory of the machine, so that most paths are plain names: they need no escaping, and those of the
//! control sockets stay below the limit of socket addresses.

use std::path::Path;

use serde_json::json;

use super::console::CONSOLE;
use super::disk::{DISK, VARIABLES};
use super::qmp::{EVENTS, SOCKET};
use super::seed::SEED;
use super::template::MEMORY;
use crate::host::QemuMachine;
use crate::machine_spec::MachineSpec;
use crate::options::{Firmware, GuestNetwork, Options};

/// The option whose value identifies the process of a machine.
pub(super) const MARKER: &str = "-name";

/// Flash memory for firmware: unit 0 has its code, unit 1 its variables.
const FLASH: &str = "if=pflash,format=raw";

/// How a machine starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartMode {
    Boot,
    /// From saved memory. The guest is paused after the memory was read.
    Restore,
}

/// The accelerator that a machine runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QemuAccelerator {
    Kvm,
    Tcg,
}

impl QemuAccelerator {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Returns the arguments that are common to all guests of a provider, those of KVM trials included. A trial has no
/// variables of the firmware.
pub(super) fn base(options: &Options, accelerator: QemuAccelerator) -> Vec<String> {
    let mut arguments = CommandLine::default();
    arguments.flag("-nodefaults").flag("-no-user-config");
    arguments.pair("-display", "none");
    if let Some(machine) = machine_type(options) {
        arguments.pair("-machine", machine);
    }
    arguments.pair("-accel", accelerator.as_str());
    if let Some(cpu) = cpu(&options.architecture, accelerator) {
        arguments.pair("-cpu", cpu);
    }
    match &options.firmware {
        Some(Firmware {
            image,
            variables: Some(_),
        }) => {
            let image = image.to_string_lossy().replace(',', ",,");
            arguments.pair(
                "-drive",
                &format!("{FLASH},unit=0,readonly=on,file={image}"),
            );
        }
        Some(Firmware {
            image,
            variables: None,
        }) => arguments.path("-bios", image),
        None => {}
    }
    arguments.0
}

/// Returns the command line of a machine.
pub(super) fn machine(
    options: &Options,
    machine: &QemuMachine,
    spec: &MachineSpec,
    accelerator: QemuAccelerator,
    start_mode: StartMode,
) -> Vec<String> {
    let mut arguments = CommandLine(base(options, accelerator));
    arguments.pair(MARKER, machine.id.as_str());
    arguments.pair("-smp", &machine.cpus.to_string());
    arguments.pair("-m", &format!("{}M", machine.memory));
    if options.has_variables() {
        arguments.pair("-drive", &format!("{FLASH},unit=1,file={VARIABLES}"));
    }
    if let Some(kernel) = &spec.kernel {
        arguments.path("-kernel", &kernel.path);
        if let Some(initrd) = &kernel.initrd {
            arguments.path("-initrd", initrd);
        }
        if let Some(text) = &kernel.arguments {
            arguments.pair("-append", text);
        }
    }
    // The disk is deleted with the machine, so that it need not be flushed.
    let disk = json!({
        "node-name": "disk",
        "driver": "qcow2",
        "discard": "unmap",
        "cache": {"direct": false, "no-flush": true},
        "file": {
            "driver": "file", "filename": DISK, "discard": "unmap",
            "cache": {"direct": false, "no-flush": true},
        },
    });
    let seed = json!({
        "node-name": "seed",
        "driver": "raw",
        "read-only": true,
        "file": {"driver": "file", "filename": SEED},
    });
    let device = |kind: &str| device(options, kind);
    arguments.pair("-blockdev", &disk.to_string());
    arguments.pair(
        "-device",
        &format!("{},drive=disk,bootindex=1", device("virtio-blk")),
    );
    arguments.pair("-blockdev", &seed.to_string());
    arguments.pair("-device", &format!("{},drive=seed", device("virtio-blk")));
    arguments.pair("-netdev", &netdev(&options.network, spec.guest_port));
    arguments.pair(
        "-device",
        &format!("{},netdev=net0,mac={}", device("virtio-net"), machine.mac),
    );
    arguments.pair("-object", "rng-random,id=rng0,filename=/dev/urandom");
    arguments.pair("-device", &format!("{},rng=rng0", device("virtio-rng")));
    arguments.pair(
        "-chardev",
        &format!("file,id=console,path={CONSOLE},append=on"),
    );
    arguments.pair("-serial", "chardev:console");
    for socket in [SOCKET, EVENTS] {
        arguments.pair("-qmp", &format!("unix:{socket},server=on,wait=off"));
    }
    if start_mode == StartMode::Restore {
        arguments.pair("-incoming", &format!("exec:cat {MEMORY}"));
    }
    arguments.0
}

/// Returns the board. QEMU has no default for some architectures.
fn machine_type(options: &Options) -> Option<&str> {
    match (&options.machine, &*options.architecture) {
        (Some(machine), _) => Some(machine),
        (None, "aarch64" | "arm" | "riscv64" | "riscv32") => Some("virt"),
        (None, _) => None,
    }
}

/// Returns the best CPU model of the accelerator.
fn cpu(architecture: &str, accelerator: QemuAccelerator) -> Option<&'static str> {
    match (accelerator, architecture) {
        (QemuAccelerator::Kvm, _) => Some("host"),
        (QemuAccelerator::Tcg, "x86_64" | "i386" | "aarch64" | "arm" | "s390x") => Some("max"),
        (QemuAccelerator::Tcg, _) => None,
    }
}

/// Returns the name of a device. QEMU chooses the bus, except on boards without PCI.
fn device(options: &Options, kind: &str) -> String {
    let board = options.machine.as_deref().unwrap_or_default();
    if board.starts_with("microvm") {
        format!("{kind}-device")
    } else {
        kind.to_owned()
    }
}

fn netdev(network: &GuestNetwork, guest_port: u16) -> String {
    match network {
        // Port 0 lets the system choose one that is free.
        GuestNetwork::User { address } => {
            format!("user,id=net0,hostfwd=tcp:{address}:0-:{guest_port}")
        }
        GuestNetwork::Bridge { name } => format!("bridge,id=net0,br={}", name.replace(',', ",,")),
    }
}

#[derive(Default)]
struct CommandLine(Vec<String>);

impl CommandLine {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.to_owned());
        self
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.0.extend([name.to_owned(), value.to_owned()]);
    }

    fn path(&mut self, name: &str, value: &Path) {
        self.pair(name, &value.to_string_lossy());
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_config::Accelerator;
    use nodeyard_driver::{Owner, Poll, SystemId, Tags};
    use nodeyard_model::{ProviderName, Timestamp};

    use super::*;
    use crate::host::LocalId;
    use crate::machine_spec::{DiskFormat, Kernel, Seed};

    fn options(change: impl FnOnce(&mut Options)) -> Options {
        let mut options = Options {
            owner: Owner {
                system: SystemId::new("ours"),
                provider: ProviderName::new("local").unwrap(),
            },
            directory: "/state".into(),
            binary: "qemu".into(),
            architecture: "x86_64".into(),
            machine: None,
            accelerator: Accelerator::Tcg,
            kvm: "/dev/kvm".into(),
            firmware: None,
            network: GuestNetwork::User {
                address: [192, 0, 2, 1].into(),
            },
            boot_timeout: Default::default(),
            cloud_images: Vec::new(),
            disk_images: Vec::new(),
            pools: Vec::new(),
            stop_grace: Default::default(),
            poll: Poll::default(),
        };
        change(&mut options);
        options
    }

    fn line(options: &Options, accelerator: QemuAccelerator) -> String {
        let guest = QemuMachine {
            id: LocalId::parse("np1-abc").unwrap(),
            name: "np1".into(),
            tags: Tags::default(),
            upload: None,
            cpus: 3,
            memory: 2048,
            mac: "52:54:00:01:02:03".into(),
            created: Timestamp::from_secs(0.0).unwrap(),
            deleting: false,
            process: None,
        };
        let spec = MachineSpec {
            backing: "/images/a,b.qcow2".into(),
            format: DiskFormat::Qcow2,
            disk_size: None,
            kernel: Some(Kernel {
                path: "/boot/vmlinuz".into(),
                initrd: None,
                arguments: Some("console=ttyS0 quiet".into()),
            }),
            seed: Seed::default(),
            warm: false,
            guest_port: 2022,
        };
        machine(options, &guest, &spec, accelerator, StartMode::Boot).join("\n")
    }

    #[test]
    fn the_command_line_follows_the_configuration() {
        let text = line(&options(|_| {}), QemuAccelerator::Kvm);
        for part in [
            "-accel\nkvm\n-cpu\nhost\n",
            "-name\nnp1-abc\n-smp\n3\n-m\n2048M\n",
            "-kernel\n/boot/vmlinuz\n-append\nconsole=ttyS0 quiet\n",
            "user,id=net0,hostfwd=tcp:192.0.2.1:0-:2022\n",
            "virtio-net,netdev=net0,mac=52:54:00:01:02:03\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("-machine") && !text.contains("-bios") && !text.contains("-initrd"));
        // What a path contains is never read as an option.
        assert!(!text.contains("a,b"));
    }

    #[test]
    fn boards_and_networks_of_other_kinds() {
        let arm = options(|options| {
            options.architecture = "aarch64".into();
            options.firmware = Some(Firmware {
                image: "/fw,1.fd".into(),
                variables: None,
            });
            options.network = GuestNetwork::Bridge {
                name: "br,evil=1".into(),
            };
        });
        let text = line(&arm, QemuAccelerator::Tcg);
        assert!(
            text.contains("-machine\nvirt\n-accel\ntcg\n-cpu\nmax\n-bios\n/fw,1.fd\n"),
            "{text}"
        );
        assert!(text.contains("bridge,id=net0,br=br,,evil=1\n"), "{text}");
        assert!(!text.contains("pflash"), "{text}");
        let split = options(|options| {
            options.firmware = Some(Firmware {
                image: "/code,1.fd".into(),
                variables: Some("/vars.fd".into()),
            });
        });
        let text = line(&split, QemuAccelerator::Tcg);
        for part in [
            "-drive\nif=pflash,format=raw,unit=0,readonly=on,file=/code,,1.fd\n",
            "-drive\nif=pflash,format=raw,unit=1,file=variables.fd\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("-bios"), "{text}");
        let small = options(|options| options.machine = Some("microvm,rtc=on".into()));
        let text = line(&small, QemuAccelerator::Tcg);
        assert!(text.contains("virtio-blk-device,drive=disk"), "{text}");
    }
}
