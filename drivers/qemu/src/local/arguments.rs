//! The command line of QEMU.
//!
//! QEMU runs in the machine's directory, so that most paths are plain names: they need no escaping, and the
//! control socket stays within what the address of a socket can hold.

use std::path::Path;

use serde_json::json;

use super::console::CONSOLE;
use super::disk::{DISK, VARIABLES};
use super::qmp::{EVENTS, SOCKET};
use super::seed::SEED;
use super::template::MEMORY;
use crate::host::Machine;
use crate::options::{Firmware, Network, Options};
use crate::recipe::Recipe;

/// The two arguments by which a process is known as that of a machine.
pub(super) const MARK: &str = "-name";

/// Memory for firmware: its code in the first unit, its variables in the second.
const FLASH: &str = "if=pflash,format=raw";

/// How a machine comes to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    Boot,
    /// From memory that was saved; it is stopped when it has read it.
    Memory,
}

/// What runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    Kvm,
    Tcg,
}

impl Engine {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// What all guests of a provider have in common, the ones of trials included. Those have no variables of a firmware,
/// which then forgets what it would write there.
pub(super) fn base(options: &Options, engine: Engine) -> Vec<String> {
    let mut arguments = Arguments::default();
    arguments.flag("-nodefaults").flag("-no-user-config");
    arguments.pair("-display", "none");
    if let Some(machine) = machine_type(options) {
        arguments.pair("-machine", machine);
    }
    arguments.pair("-accel", engine.as_str());
    if let Some(cpu) = cpu(&options.architecture, engine) {
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

/// The command line of a machine.
pub(super) fn machine(
    options: &Options,
    machine: &Machine,
    recipe: &Recipe,
    engine: Engine,
    beginning: Beginning,
) -> Vec<String> {
    let mut arguments = Arguments(base(options, engine));
    arguments.pair(MARK, machine.id.as_str());
    arguments.pair("-smp", &machine.cpus.to_string());
    arguments.pair("-m", &format!("{}M", machine.memory));
    if options.has_variables() {
        arguments.pair("-drive", &format!("{FLASH},unit=1,file={VARIABLES}"));
    }
    if let Some(kernel) = &recipe.kernel {
        arguments.path("-kernel", &kernel.path);
        if let Some(initrd) = &kernel.initrd {
            arguments.path("-initrd", initrd);
        }
        if let Some(text) = &kernel.arguments {
            arguments.pair("-append", text);
        }
    }
    // The disk goes with the machine, so nothing is gained by waiting until it is on the platter.
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
    arguments.pair("-netdev", &netdev(&options.network, recipe.guest_port));
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
    if beginning == Beginning::Memory {
        arguments.pair("-incoming", &format!("exec:cat {MEMORY}"));
    }
    arguments.0
}

/// Some boards have no default in QEMU.
fn machine_type(options: &Options) -> Option<&str> {
    match (&options.machine, &*options.architecture) {
        (Some(machine), _) => Some(machine),
        (None, "aarch64" | "arm" | "riscv64" | "riscv32") => Some("virt"),
        (None, _) => None,
    }
}

/// The best that the engine has.
fn cpu(architecture: &str, engine: Engine) -> Option<&'static str> {
    match (engine, architecture) {
        (Engine::Kvm, _) => Some("host"),
        (Engine::Tcg, "x86_64" | "i386" | "aarch64" | "arm" | "s390x") => Some("max"),
        (Engine::Tcg, _) => None,
    }
}

/// QEMU knows the right bus of the board by itself, except where there is no PCI at all.
fn device(options: &Options, kind: &str) -> String {
    let board = options.machine.as_deref().unwrap_or_default();
    if board.starts_with("microvm") {
        format!("{kind}-device")
    } else {
        kind.to_owned()
    }
}

fn netdev(network: &Network, guest_port: u16) -> String {
    match network {
        // Port 0 lets the system choose one that is free.
        Network::User { address } => {
            format!("user,id=net0,hostfwd=tcp:{address}:0-:{guest_port}")
        }
        Network::Bridge { name } => format!("bridge,id=net0,br={}", name.replace(',', ",,")),
    }
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
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
    use crate::recipe::{DiskFormat, Kernel, Seed};

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
            network: Network::User {
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

    fn line(options: &Options, engine: Engine) -> String {
        let guest = Machine {
            id: LocalId::parse("np1-abc").unwrap(),
            name: "np1".into(),
            tags: Tags::default(),
            upload: None,
            cpus: 3,
            memory: 2048,
            mac: "52:54:00:01:02:03".into(),
            created: Timestamp::from_secs(0.0).unwrap(),
            going: false,
            process: None,
        };
        let recipe = Recipe {
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
        machine(options, &guest, &recipe, engine, Beginning::Boot).join("\n")
    }

    #[test]
    fn a_machine_is_what_the_configuration_says() {
        let text = line(&options(|_| {}), Engine::Kvm);
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
            options.network = Network::Bridge {
                name: "br,evil=1".into(),
            };
        });
        let text = line(&arm, Engine::Tcg);
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
        let text = line(&split, Engine::Tcg);
        for part in [
            "-drive\nif=pflash,format=raw,unit=0,readonly=on,file=/code,,1.fd\n",
            "-drive\nif=pflash,format=raw,unit=1,file=variables.fd\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("-bios"), "{text}");
        let small = options(|options| options.machine = Some("microvm,rtc=on".into()));
        let text = line(&small, Engine::Tcg);
        assert!(text.contains("virtio-blk-device,drive=disk"), "{text}");
    }
}
