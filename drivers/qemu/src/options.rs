//! What the driver has to know from the configuration.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodeyard_config::{self as config, Accelerator, Qemu, QemuNetwork};
use nodeyard_driver::{Error, ImageFilter, Owner, Poll};
use nodeyard_model::{ImageName, Label, PoolName};

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    /// Where everything is kept.
    pub directory: PathBuf,
    /// The program that runs machines.
    pub binary: Box<str>,
    pub architecture: Box<str>,
    pub machine: Option<Box<str>>,
    pub accelerator: Accelerator,
    pub firmware: Option<PathBuf>,
    pub network: Network,
    pub boot_timeout: Duration,
    pub cloud_images: Vec<CloudImageOptions>,
    /// Built images and the port on which their machines are reached.
    pub disk_images: Vec<(ImageName, u16)>,
    pub pools: Vec<PoolOptions>,
    /// How long a guest has to shut down, and then QEMU to end.
    pub stop_grace: Duration,
    pub poll: Poll,
}

/// How guests reach the network and are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Behind a port of this host.
    User { address: Ipv4Addr },
    /// As neighbours on a bridge.
    Bridge { name: Box<str> },
}

#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub name: PoolName,
    pub max_cores: Option<u64>,
    pub labels: Vec<LabelOptions>,
}

#[derive(Debug, Clone)]
pub struct LabelOptions {
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
    /// Whether a machine must be heard before it is there.
    pub host_key_checking: bool,
    pub console_log: bool,
}

/// What the machines of a label boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelImage {
    Disk(ImageName),
    /// The name of an entry of `cloud_images`.
    Cloud(Box<str>),
}

#[derive(Debug, Clone)]
pub struct CloudImageOptions {
    pub name: Box<str>,
    pub choice: ImageChoice,
    pub username: Option<Box<str>>,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageChoice {
    Path(PathBuf),
    Filters(Vec<ImageFilter>),
}

impl Options {
    /// `state_dir` is where the provider keeps its files if the section does not say.
    pub fn from_config(section: &Qemu, owner: Owner, state_dir: &Path) -> Result<Self, Error> {
        let architecture: Box<str> = section
            .architecture
            .as_deref()
            .unwrap_or_else(|| host_architecture())
            .into();
        let directory = section.directory.as_ref().map_or_else(
            || state_dir.join("qemu").join(owner.provider.as_str()),
            PathBuf::from,
        );
        // QEMU runs inside a machine's directory, where a relative path would mean something else.
        let directory = std::path::absolute(&directory).map_err(|cause| {
            Error::permanent(format!(
                "`directory: {}` cannot be used",
                directory.display()
            ))
            .because(cause)
        })?;
        let disk_images = section
            .diskimages
            .iter()
            .map(|image| Ok((image_name(&image.name)?, image.connection.connection_port.0)));
        Ok(Self {
            directory,
            binary: section
                .binary
                .as_deref()
                .map_or_else(|| format!("qemu-system-{architecture}").into(), Into::into),
            architecture,
            machine: section.machine.as_deref().map(Into::into),
            accelerator: section.accelerator,
            firmware: section.firmware.as_ref().map(PathBuf::from),
            network: network(section)?,
            boot_timeout: *section.boot_timeout,
            cloud_images: section.cloud_images.iter().map(cloud_image).collect(),
            disk_images: disk_images.collect::<Result<_, Error>>()?,
            pools: section.pools.iter().map(pool).collect::<Result<_, _>>()?,
            stop_grace: Duration::from_secs(5),
            // Looking costs next to nothing here.
            poll: Poll {
                most: Duration::from_secs(1),
                ..Poll::default()
            },
            owner,
        })
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Result<&PoolOptions, Error> {
        self.pools
            .iter()
            .find(|pool| pool.name == *name)
            .ok_or_else(|| {
                let provider = &self.owner.provider;
                Error::permanent(format!("provider {provider} has no pool {name}"))
            })
    }

    pub(crate) fn label(&self, pool: &PoolName, name: &Label) -> Result<&LabelOptions, Error> {
        let labels = &self.pool(pool)?.labels;
        labels
            .iter()
            .find(|label| label.name == *name)
            .ok_or_else(|| Error::permanent(format!("pool {pool} has no label {name}")))
    }

    pub(crate) fn cloud_image(&self, name: &str) -> Result<&CloudImageOptions, Error> {
        self.cloud_images
            .iter()
            .find(|image| *image.name == *name)
            .ok_or_else(|| {
                let provider = &self.owner.provider;
                Error::permanent(format!("provider {provider} has no cloud image {name}"))
            })
    }

    /// The port on which the machines of a label listen.
    pub(crate) fn guest_port(&self, label: &LabelOptions) -> Result<u16, Error> {
        match &label.image {
            LabelImage::Cloud(name) => Ok(self.cloud_image(name)?.port),
            LabelImage::Disk(name) => {
                let mut known = self.disk_images.iter();
                Ok(known
                    .find(|(image, _)| image == name)
                    .map_or(22, |(_, port)| *port))
            }
        }
    }
}

/// This host's architecture, as QEMU calls it.
pub(crate) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "i386",
        "powerpc64" => "ppc64",
        same => same,
    }
}

fn network(section: &Qemu) -> Result<Network, Error> {
    match (section.network, &section.bridge) {
        (QemuNetwork::Bridge, Some(bridge)) => Ok(Network::Bridge {
            name: bridge.as_str().into(),
        }),
        (QemuNetwork::Bridge, None) => Err(Error::permanent(
            "`network: bridge` needs the name of the `bridge`",
        )),
        (QemuNetwork::User, _) => {
            let text = &section.publish_address;
            let address = text.parse::<Ipv4Addr>();
            let address = address.ok().filter(|address| !address.is_unspecified());
            let address = address.ok_or_else(|| {
                Error::permanent(format!(
                    "`publish-address: {text}` is not an IPv4 address under which this host is reached"
                ))
            })?;
            Ok(Network::User { address })
        }
    }
}

fn pool(pool: &config::QemuPool) -> Result<PoolOptions, Error> {
    Ok(PoolOptions {
        name: pool.common.name.as_str().into(),
        max_cores: pool.max_cores.0,
        labels: pool.labels.iter().map(label).collect::<Result<_, _>>()?,
    })
}

fn label(label: &config::QemuLabel) -> Result<LabelOptions, Error> {
    let image = match (&label.diskimage, &label.cloud_image) {
        (Some(image), _) => LabelImage::Disk(image_name(image)?),
        (None, Some(image)) => LabelImage::Cloud(image.as_str().into()),
        (None, None) => {
            let name = &label.name;
            return Err(Error::permanent(format!("label {name} has no image")));
        }
    };
    if label.warm_template {
        tracing::warn!(label = %label.name, "machines start from the beginning: `warm-template` is not part of this version");
    }
    Ok(LabelOptions {
        name: label.name.as_str().into(),
        image,
        cpus: label.cpus,
        memory: label.memory,
        disk_size: label.disk_size,
        kernel: label.kernel.as_ref().map(PathBuf::from),
        initrd: label.initrd.as_ref().map(PathBuf::from),
        kernel_args: label.kernel_args.as_deref().map(Into::into),
        userdata: label.userdata.as_deref().map(Into::into),
        authorized_keys: label
            .authorized_keys
            .iter()
            .map(|key| key.trim().into())
            .collect(),
        host_key_checking: label.host_key_checking,
        console_log: label.console_log,
    })
}

fn cloud_image(image: &config::QemuCloudImage) -> CloudImageOptions {
    let filters = image
        .image_filters
        .iter()
        .flatten()
        .map(|filter| ImageFilter {
            name: filter.name.clone(),
            values: filter.values.clone(),
        });
    CloudImageOptions {
        name: image.name.as_str().into(),
        choice: match &image.path {
            Some(path) => ImageChoice::Path(path.into()),
            None => ImageChoice::Filters(filters.collect()),
        },
        username: image.username.as_deref().map(Into::into),
        port: image.connection.connection_port.0,
    }
}

fn image_name(name: &str) -> Result<ImageName, Error> {
    ImageName::new(name).map_err(|cause| Error::permanent("an image cannot be used").because(cause))
}
