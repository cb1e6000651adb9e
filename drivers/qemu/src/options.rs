//! The part of the configuration that the driver uses.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodeyard_config::{self as config, Accelerator, Qemu, QemuNetwork};
use nodeyard_driver::{Error, ImageFilter, Owner, Poll};
use nodeyard_driver_common::{LabelImage, image_filters, image_name};
use nodeyard_model::{ImageName, Label, PoolName};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    /// The directory of the provider.
    pub directory: PathBuf,
    /// The program that runs machines.
    pub binary: Box<str>,
    pub architecture: Box<str>,
    pub machine: Option<Box<str>>,
    pub accelerator: Accelerator,
    /// The device that must be accessible for a KVM trial.
    pub kvm: PathBuf,
    pub firmware: Option<Firmware>,
    pub network: GuestNetwork,
    pub boot_timeout: Duration,
    pub cloud_images: Vec<QemuCloudImageOptions>,
    pub disk_images: Vec<QemuDiskImageOptions>,
    pub pools: Vec<QemuPoolOptions>,
    /// How long a guest may take to shut down, and then QEMU to quit.
    pub stop_grace: Duration,
    pub poll: Poll,
}

/// The firmware of guests, in place of QEMU's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firmware {
    pub image: PathBuf,
    /// The variables of a split firmware. Each guest gets a copy.
    pub variables: Option<PathBuf>,
}

/// How guests are connected to the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestNetwork {
    /// User networking, with a forwarded port of this host.
    User { address: Ipv4Addr },
    /// A bridge.
    Bridge { name: Box<str> },
}

#[derive(Debug, Clone)]
pub struct QemuPoolOptions {
    pub name: PoolName,
    pub max_cores: Option<u64>,
    pub labels: Vec<QemuLabelOptions>,
}

#[derive(Debug, Clone)]
pub struct QemuLabelOptions {
    pub name: Label,
    pub image: LabelImage,
    pub cpus: u64,
    /// In MiB.
    pub memory: u64,
    /// In GiB.
    pub disk_size: Option<u64>,
    pub kernel: Option<PathBuf>,
    pub initrd: Option<PathBuf>,
    pub kernel_args: Option<Box<str>>,
    pub userdata: Option<Box<str>>,
    pub authorized_keys: Vec<Box<str>>,
    /// Whether a guest must greet before the machine is ready.
    pub host_key_checking: bool,
    pub console_log: bool,
    /// Whether machines start from saved memory if their image supports it.
    pub warm_template: bool,
}

#[derive(Debug, Clone)]
pub struct QemuDiskImageOptions {
    pub name: ImageName,
    pub username: Option<Box<str>>,
    pub access: GuestAccess,
}

#[derive(Debug, Clone)]
pub struct QemuCloudImageOptions {
    pub name: Box<str>,
    pub choice: QemuImageChoice,
    pub username: Option<Box<str>>,
    pub access: GuestAccess,
}

/// How to connect to the machines of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestAccess {
    pub port: u16,
    /// Whether the server on this port sends first, as sshd does.
    pub greets: bool,
}

impl GuestAccess {
    pub const SSH: Self = Self {
        port: 22,
        greets: true,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QemuImageChoice {
    Path(PathBuf),
    Filters(Vec<ImageFilter>),
}

impl Options {
    /// `state_dir` is the parent of the default directory; `username` returns the user of a built image.
    pub fn of(
        section: &Qemu,
        owner: Owner,
        state_dir: &Path,
        username: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let architecture: Box<str> = section
            .architecture
            .as_deref()
            .unwrap_or_else(|| host_architecture())
            .into();
        let directory = section.directory.as_ref().map_or_else(
            || state_dir.join("qemu").join(owner.provider.as_str()),
            PathBuf::from,
        );
        let directory = absolute(&directory)?;
        let disk_images = section.diskimages.iter().map(|image| {
            Ok(QemuDiskImageOptions {
                name: image_name(&image.name)?,
                username: username(&image.name).map(Into::into),
                access: guest_access(&image.connection),
            })
        });
        Ok(Self {
            directory,
            binary: match section.binary.as_deref() {
                Some(path) if path.contains('/') => {
                    absolute(Path::new(path))?.to_string_lossy().into()
                }
                Some(name) => name.into(),
                None => format!("qemu-system-{architecture}").into(),
            },
            architecture,
            machine: section.machine.as_deref().map(Into::into),
            accelerator: section.accelerator,
            kvm: "/dev/kvm".into(),
            firmware: firmware(section)?,
            network: network(section)?,
            boot_timeout: *section.boot_timeout,
            cloud_images: section
                .cloud_images
                .iter()
                .map(cloud_image)
                .collect::<Result<_, _>>()?,
            disk_images: disk_images.collect::<Result<_, Error>>()?,
            pools: section.pools.iter().map(pool).collect::<Result<_, _>>()?,
            stop_grace: Duration::from_secs(5),
            // A poll of the local host is cheap.
            poll: Poll {
                most: Duration::from_secs(1),
                ..Poll::default()
            },
            owner,
        })
    }

    /// Returns whether the firmware has variables.
    pub(crate) fn has_variables(&self) -> bool {
        let firmware = self.firmware.as_ref();
        firmware.is_some_and(|firmware| firmware.variables.is_some())
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Result<&QemuPoolOptions, Error> {
        self.pools
            .iter()
            .find(|pool| pool.name == *name)
            .ok_or_else(|| {
                let provider = &self.owner.provider;
                Error::permanent(format!("provider {provider} has no pool {name}"))
            })
    }

    pub(crate) fn label(&self, pool: &PoolName, name: &Label) -> Result<&QemuLabelOptions, Error> {
        let labels = &self.pool(pool)?.labels;
        labels
            .iter()
            .find(|label| label.name == *name)
            .ok_or_else(|| Error::permanent(format!("pool {pool} has no label {name}")))
    }

    pub(crate) fn cloud_image(&self, name: &str) -> Result<&QemuCloudImageOptions, Error> {
        self.cloud_images
            .iter()
            .find(|image| *image.name == *name)
            .ok_or_else(|| {
                let provider = &self.owner.provider;
                Error::permanent(format!("provider {provider} has no cloud image {name}"))
            })
    }

    /// Returns how to connect to the machines of a label.
    pub(crate) fn guest_access(&self, label: &QemuLabelOptions) -> Result<GuestAccess, Error> {
        match &label.image {
            LabelImage::Cloud(name) => Ok(self.cloud_image(name)?.access),
            LabelImage::Disk(name) => Ok(self
                .disk_image(name)
                .map_or(GuestAccess::SSH, |image| image.access)),
        }
    }

    /// Returns the user that logs in to the machines of a label, if the configuration names one.
    pub(crate) fn username(&self, label: &QemuLabelOptions) -> Result<Option<Box<str>>, Error> {
        match &label.image {
            LabelImage::Cloud(name) => Ok(self.cloud_image(name)?.username.clone()),
            LabelImage::Disk(name) => Ok(self
                .disk_image(name)
                .and_then(|image| image.username.clone())),
        }
    }

    fn disk_image(&self, name: &ImageName) -> Option<&QemuDiskImageOptions> {
        self.disk_images.iter().find(|image| image.name == *name)
    }
}

/// Returns QEMU's name of the architecture of this host.
pub(crate) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "i386",
        "powerpc64" => "ppc64",
        same => same,
    }
}

fn firmware(section: &Qemu) -> Result<Option<Firmware>, Error> {
    let variables = path(section.firmware_variables.as_ref())?;
    let image = path(section.firmware.as_ref())?;
    Ok(image.map(|image| Firmware { image, variables }))
}

fn network(section: &Qemu) -> Result<GuestNetwork, Error> {
    match (section.network, &section.bridge) {
        (QemuNetwork::Bridge, Some(bridge)) => Ok(GuestNetwork::Bridge {
            name: bridge.as_str().into(),
        }),
        (QemuNetwork::Bridge, None) => Err(Error::permanent(
            "`network: bridge` requires the name of a `bridge`",
        )),
        (QemuNetwork::User, _) => {
            let text = &section.publish_address;
            let address = text.parse::<Ipv4Addr>();
            let address = address.ok().filter(|address| !address.is_unspecified());
            let address = address.ok_or_else(|| {
                Error::permanent(format!(
                    "`publish-address: {text}` is not an IPv4 address of this host"
                ))
            })?;
            Ok(GuestNetwork::User { address })
        }
    }
}

fn pool(pool: &config::QemuPool) -> Result<QemuPoolOptions, Error> {
    Ok(QemuPoolOptions {
        name: pool.common.name.as_str().into(),
        max_cores: pool.max_cores.0,
        labels: pool.labels.iter().map(label).collect::<Result<_, _>>()?,
    })
}

fn label(label: &config::QemuLabel) -> Result<QemuLabelOptions, Error> {
    let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
    Ok(QemuLabelOptions {
        name: label.name.as_str().into(),
        image: LabelImage::of(&label.name, disk, cloud)?,
        cpus: label.cpus,
        memory: label.memory,
        disk_size: label.disk_size,
        kernel: path(label.kernel.as_ref())?,
        initrd: path(label.initrd.as_ref())?,
        kernel_args: label.kernel_args.as_deref().map(Into::into),
        userdata: label.userdata.as_deref().map(Into::into),
        authorized_keys: label
            .authorized_keys
            .iter()
            .map(|key| key.trim().into())
            .collect(),
        host_key_checking: label.host_key_checking,
        console_log: label.console_log,
        warm_template: label.warm_template,
    })
}

fn guest_access(connection: &config::Connection) -> GuestAccess {
    GuestAccess {
        port: connection.connection_port.0,
        greets: matches!(connection.connection_type.as_str(), "ssh" | "network_cli"),
    }
}

fn cloud_image(image: &config::QemuCloudImage) -> Result<QemuCloudImageOptions, Error> {
    let filters = image.image_filters.as_deref().unwrap_or_default();
    Ok(QemuCloudImageOptions {
        name: image.name.as_str().into(),
        choice: match path(image.path.as_ref())? {
            Some(path) => QemuImageChoice::Path(path),
            None => QemuImageChoice::Filters(image_filters(filters)),
        },
        username: image.username.as_deref().map(Into::into),
        access: guest_access(&image.connection),
    })
}

fn path(text: Option<&String>) -> Result<Option<PathBuf>, Error> {
    text.map(|text| absolute(Path::new(text))).transpose()
}

/// QEMU runs in the directory of a machine, where a relative path would refer to another file.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|cause| {
        Error::permanent(format!("invalid path {:?}", path.display().to_string())).because(cause)
    })
}

#[cfg(test)]
mod tests {
    use nodeyard_config::{Driver, Environment, Mode, load_bytes};
    use nodeyard_driver::SystemId;
    use nodeyard_model::ProviderName;

    use super::*;

    fn options(section: &str) -> Result<Options, Error> {
        let text =
            format!("labels: [{{name: vm}}]\nproviders:\n- name: local\n  driver: qemu\n{section}");
        let main = (Path::new("nodepool.yaml"), text.as_bytes());
        let (config, problems) = load_bytes(main, None, &Environment::default(), Mode::Daemon);
        let config = config.unwrap_or_else(|| panic!("{problems:?}"));
        let Driver::Qemu(section) = &config.providers[0].driver else {
            panic!("not a provider of virtual machines");
        };
        let owner = Owner {
            system: SystemId::new("ours"),
            provider: ProviderName::new("local").unwrap(),
        };
        Options::of(section, owner, Path::new("/state"), |_| None)
    }

    #[test]
    fn absent_keys_have_defaults_of_the_host() {
        let options = options("").unwrap();
        assert_eq!(options.directory, Path::new("/state/qemu/local"));
        assert_eq!(*options.architecture, *host_architecture());
        assert_eq!(
            *options.binary,
            format!("qemu-system-{}", host_architecture())
        );
        let address = Ipv4Addr::LOCALHOST;
        assert_eq!(options.network, GuestNetwork::User { address });
    }

    #[test]
    fn images_define_how_to_connect_to_their_machines() {
        let options = options(
            "  cloud-images:\n  - {name: w, path: /w, connection-type: winrm}\n  - {name: l, path: /l}\n  \
             pools: [{name: p, labels: [{name: vm, cloud-image: w}]}]\n",
        )
        .unwrap();
        let label = options.label(&"p".into(), &"vm".into()).unwrap();
        let access = options.guest_access(label).unwrap();
        assert_eq!(
            access,
            GuestAccess {
                port: 5986,
                greets: false
            }
        );
        assert_eq!(options.cloud_image("l").unwrap().access, GuestAccess::SSH);
    }

    #[test]
    fn paths_do_not_depend_on_where_qemu_runs() {
        let options = options(
            "  directory: vms\n  firmware: fw.fd\n  firmware-variables: vars.fd\n  binary: bin/qemu\n  cloud-images: [{name: l, path: l.raw}]\n",
        )
        .unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(options.directory, here.join("vms"));
        let firmware = Firmware {
            image: here.join("fw.fd"),
            variables: Some(here.join("vars.fd")),
        };
        assert_eq!(options.firmware, Some(firmware));
        assert_eq!(Path::new(&*options.binary), here.join("bin/qemu"));
        let image = options.cloud_image("l").unwrap();
        assert_eq!(image.choice, QemuImageChoice::Path(here.join("l.raw")));
    }

    #[test]
    fn addresses_that_clients_cannot_connect_to_are_refused() {
        for bad in ["0.0.0.0", "localhost", "::1"] {
            let error = options(&format!("  publish-address: \"{bad}\"\n")).unwrap_err();
            assert!(
                error.to_string().contains("is not an IPv4 address"),
                "{error}"
            );
        }
    }
}
