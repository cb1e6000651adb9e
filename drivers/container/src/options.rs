//! The part of the configuration that the driver uses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use nodeyard_config as config;
use nodeyard_driver::{Error, ImageFilter, Owner, Poll};
use nodeyard_driver_common::{image_filters, image_name};
use nodeyard_model::{ImageName, Label, PoolName};

const SSH_PORT: u16 = 22;

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    /// None for the default of the runtime.
    pub network: Option<Box<str>>,
    /// The address on which ports are published.
    pub publish_address: Box<str>,
    /// From running until sshd answers.
    pub boot_timeout: Duration,
    /// Limits the pull of an image, too.
    pub launch_timeout: Duration,
    pub pools: Vec<ContainerPoolOptions>,
    pub cloud_images: Vec<ContainerCloudImageOptions>,
    pub disk_images: Vec<ContainerDiskImageOptions>,
    /// Limits each call except imports and pulls.
    pub call_timeout: Duration,
    pub poll: Poll,
}

impl Options {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            network: None,
            publish_address: "127.0.0.1".into(),
            boot_timeout: Duration::from_secs(60),
            launch_timeout: Duration::from_secs(300),
            pools: Vec::new(),
            cloud_images: Vec::new(),
            disk_images: Vec::new(),
            call_timeout: Duration::from_secs(60),
            poll: Poll::default(),
        }
    }

    /// `username` returns the user of a built image.
    pub fn of(
        section: &config::Container,
        owner: Owner,
        username: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut disk_images = Vec::new();
        for image in &section.diskimages {
            disk_images.push(ContainerDiskImageOptions {
                name: image_name(&image.name)?,
                username: username(image.name.as_str()).map(Into::into),
            });
        }
        let cloud_images = section
            .cloud_images
            .iter()
            .map(|image| ContainerCloudImageOptions {
                name: image.name.as_str().into(),
                choice: choice(image),
                username: image.username.as_deref().map(Into::into),
            });
        let mut pools = Vec::new();
        for pool in &section.pools {
            let labels = pool.labels.iter();
            let labels = labels.map(|label| {
                let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
                let entry = section.image_access(disk, cloud);
                ContainerLabelOptions::of(label, entry.map(|entry| entry.connection))
            });
            pools.push(ContainerPoolOptions {
                name: PoolName::new(pool.common.name.as_str()),
                labels: labels.collect::<Result<_, _>>()?,
            });
        }
        let options = Self {
            network: section.network.as_deref().map(Into::into),
            publish_address: section.publish_address.as_str().into(),
            boot_timeout: *section.boot_timeout,
            launch_timeout: *section.launch_timeout,
            pools,
            cloud_images: cloud_images.collect(),
            disk_images,
            ..Self::new(owner)
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        if self.publish_address.parse::<IpAddr>().is_err() {
            let address = &self.publish_address;
            return Err(Error::permanent(format!(
                "`publish-address: {address}` is not an IP address; use one such as 127.0.0.1"
            )));
        }
        for label in self.pools.iter().flat_map(|pool| &pool.labels) {
            if label.access == ContainerAccess::Ssh && self.network.as_deref() == Some("none") {
                return Err(Error::permanent(format!(
                    "label {} is accessed by ssh, but the provider has `network: none`; use `connection: exec`",
                    label.name
                )));
            }
        }
        Ok(())
    }

    /// Returns whether containers use the network of the host and have no ports to publish.
    pub(crate) fn shares_host_network(&self) -> bool {
        self.network.as_deref() == Some("host")
    }

    /// Returns the address to connect to. If ports are published on all addresses, that is the outgoing one of this host.
    pub(crate) fn reachable_address(&self) -> Box<str> {
        let on_all = self
            .publish_address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_unspecified());
        if !on_all {
            return self.publish_address.clone();
        }
        outgoing_address()
            .unwrap_or(Ipv4Addr::LOCALHOST.into())
            .to_string()
            .into()
    }
}

/// Returns the source address of packets to other networks. Sends none.
fn outgoing_address() -> Option<IpAddr> {
    // Reserved for documentation, so that it is in no local network.
    const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(OUTSIDE).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[derive(Debug, Clone)]
pub struct ContainerPoolOptions {
    pub name: PoolName,
    pub labels: Vec<ContainerLabelOptions>,
}

/// How a machine is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerAccess {
    Ssh,
    Exec,
}

#[derive(Debug, Clone)]
pub struct ContainerLabelOptions {
    pub name: Label,
    pub image: ContainerImage,
    pub access: ContainerAccess,
    /// Ansible's connection type, unless the access is by exec.
    pub connection_type: Box<str>,
    /// Of sshd in the container.
    pub ssh_port: u16,
    pub authorized_keys: Vec<Box<str>>,
    /// Whether sshd has to answer before the machine is ready.
    pub host_key_checking: bool,
    pub cpus: Option<f64>,
    /// In MiB.
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    /// By name, such as `nofile`.
    pub ulimits: BTreeMap<String, u64>,
    pub command: Option<Vec<String>>,
    pub env: BTreeMap<String, String>,
    /// `host:container[:options]` each.
    pub volumes: Vec<String>,
    pub privileged: bool,
}

impl ContainerLabelOptions {
    pub fn new(name: Label, image: ContainerImage) -> Self {
        Self {
            name,
            image,
            access: ContainerAccess::Ssh,
            connection_type: "ssh".into(),
            ssh_port: SSH_PORT,
            authorized_keys: Vec::new(),
            host_key_checking: true,
            cpus: None,
            memory: None,
            processes: None,
            ulimits: BTreeMap::new(),
            command: None,
            env: BTreeMap::new(),
            volumes: Vec::new(),
            privileged: false,
        }
    }

    fn of(
        label: &config::ContainerLabel,
        connection: Option<&config::Connection>,
    ) -> Result<Self, Error> {
        let image = match (&label.diskimage, &label.cloud_image, &label.image) {
            (Some(image), ..) => ContainerImage::Disk(image_name(image)?),
            (None, Some(image), _) => ContainerImage::Cloud(image.as_str().into()),
            (None, None, Some(reference)) => ContainerImage::Reference(reference.as_str().into()),
            (None, None, None) => {
                return Err(Error::permanent(format!(
                    "label {} has no image; give it an `image`, a `diskimage` or a `cloud-image`",
                    label.name
                )));
            }
        };
        let options = Self {
            access: match label.connection {
                config::Reach::Ssh => ContainerAccess::Ssh,
                config::Reach::Exec => ContainerAccess::Exec,
            },
            connection_type: connection
                .map_or("ssh", |connection| &connection.connection_type)
                .into(),
            // The port of the label overrides that of the image.
            ssh_port: match connection {
                Some(connection) if label.ssh_port.0 == SSH_PORT => connection.connection_port.0,
                _ => label.ssh_port.0,
            },
            authorized_keys: label
                .authorized_keys
                .iter()
                .map(|key| key.trim().into())
                .collect(),
            host_key_checking: label.host_key_checking,
            cpus: label.cpus,
            memory: label.memory,
            processes: label.processes,
            ulimits: label
                .ulimits
                .iter()
                .map(|(name, limit)| (name.clone(), *limit))
                .collect(),
            command: label.command.clone(),
            env: label
                .env
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            volumes: label.volumes.clone(),
            privileged: label.privileged,
            ..Self::new(Label::new(label.name.as_str()), image)
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::permanent(format!("label {}: {text}", self.name)));
        for volume in &self.volumes {
            let mut parts = volume.split(':');
            let absolute = |part: Option<&str>| part.is_some_and(|part| part.starts_with('/'));
            if !absolute(parts.next()) || !absolute(parts.next()) {
                return invalid(format!(
                    "invalid entry {volume:?} of `volumes`; use /on/the/host:/in/the/container"
                ));
            }
        }
        if let Some(key) = self.authorized_keys.iter().find(|key| key.contains('\n')) {
            let start: String = key.chars().take(40).collect();
            return invalid(format!(
                "`authorized-keys` has an entry of several lines, {start:?}...; use a list"
            ));
        }
        Ok(())
    }
}

/// The image that containers of a label are created from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerImage {
    /// An uploaded image.
    Disk(ImageName),
    /// The name of an entry of `cloud_images`.
    Cloud(Box<str>),
    /// A reference of an image, such as `debian:12`.
    Reference(Box<str>),
}

#[derive(Debug, Clone)]
pub struct ContainerDiskImageOptions {
    pub name: ImageName,
    pub username: Option<Box<str>>,
}

#[derive(Debug, Clone)]
pub struct ContainerCloudImageOptions {
    pub name: Box<str>,
    pub choice: ContainerImageChoice,
    pub username: Option<Box<str>>,
}

/// How an image of the runtime is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerImageChoice {
    Id(Box<str>),
    /// Pulled if the runtime does not have it.
    Reference(Box<str>),
    Filters(Vec<ImageFilter>),
}

fn choice(image: &config::ContainerCloudImage) -> ContainerImageChoice {
    if let Some(id) = &image.image_id {
        return ContainerImageChoice::Id(id.as_str().into());
    }
    match &image.image_filters {
        Some(filters) => ContainerImageChoice::Filters(image_filters(filters)),
        None => {
            let name = image.image_name.as_deref().unwrap_or(image.name.as_str());
            ContainerImageChoice::Reference(name.into())
        }
    }
}

#[cfg(test)]
mod tests;
