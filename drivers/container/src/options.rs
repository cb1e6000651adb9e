//! What the driver has to know from the configuration.

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
    /// The runtime's default when absent.
    pub network: Option<Box<str>>,
    /// Where ports are published.
    pub publish_address: Box<str>,
    /// From running until sshd answers.
    pub boot_timeout: Duration,
    /// Also how long the pull of an image may take.
    pub launch_timeout: Duration,
    pub pools: Vec<PoolOptions>,
    pub cloud_images: Vec<CloudImageOptions>,
    pub disk_images: Vec<DiskImageOptions>,
    /// How long one ordinary call may take.
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

    /// `username` gives the user that machines of a built image are logged in to as.
    pub fn of(
        section: &config::Container,
        owner: Owner,
        username: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut disk_images = Vec::new();
        for image in &section.diskimages {
            disk_images.push(DiskImageOptions {
                name: image_name(&image.name)?,
                username: username(image.name.as_str()).map(Into::into),
            });
        }
        let cloud_images = section.cloud_images.iter().map(|image| CloudImageOptions {
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
                LabelOptions::of(label, entry.map(|entry| entry.connection))
            });
            pools.push(PoolOptions {
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
                "`publish-address: {address}` is not an address such as 127.0.0.1"
            )));
        }
        for label in self.pools.iter().flat_map(|pool| &pool.labels) {
            if label.reach == Reach::Ssh && self.network.as_deref() == Some("none") {
                return Err(Error::permanent(format!(
                    "label {} is reached by ssh, but the provider has `network: none`; use `connection: exec`",
                    label.name
                )));
            }
        }
        Ok(())
    }

    /// Containers that use the host's own network have no ports of their own to publish.
    pub(crate) fn shares_host_network(&self) -> bool {
        self.network.as_deref() == Some("host")
    }

    /// Where clients connect to. If ports are published everywhere, the address by which others see this host.
    pub(crate) fn reachable_address(&self) -> Box<str> {
        let everywhere = self
            .publish_address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_unspecified());
        if !everywhere {
            return self.publish_address.clone();
        }
        own_address()
            .unwrap_or(Ipv4Addr::LOCALHOST.into())
            .to_string()
            .into()
    }
}

/// The source address of a packet to the outside. None is sent.
fn own_address() -> Option<IpAddr> {
    // An address that is reserved for documentation, so it is nobody's neighbour.
    const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(OUTSIDE).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub name: PoolName,
    pub labels: Vec<LabelOptions>,
}

/// How a container is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Ssh,
    Exec,
}

#[derive(Debug, Clone)]
pub struct LabelOptions {
    pub name: Label,
    pub image: LabelImage,
    pub reach: Reach,
    /// Ansible's name for the kind of connection, unless it is by exec.
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

impl LabelOptions {
    pub fn new(name: Label, image: LabelImage) -> Self {
        Self {
            name,
            image,
            reach: Reach::Ssh,
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
            (Some(image), ..) => LabelImage::Disk(image_name(image)?),
            (None, Some(image), _) => LabelImage::Cloud(image.as_str().into()),
            (None, None, Some(reference)) => LabelImage::Reference(reference.as_str().into()),
            (None, None, None) => {
                return Err(Error::permanent(format!(
                    "label {} has no image; give it an `image`, a `diskimage` or a `cloud-image`",
                    label.name
                )));
            }
        };
        let options = Self {
            reach: match label.connection {
                config::Reach::Ssh => Reach::Ssh,
                config::Reach::Exec => Reach::Exec,
            },
            connection_type: connection
                .map_or("ssh", |connection| &connection.connection_type)
                .into(),
            // The label knows better than the image.
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
        let wrong = |text: String| Err(Error::permanent(format!("label {}: {text}", self.name)));
        for volume in &self.volumes {
            let mut parts = volume.split(':');
            let absolute = |part: Option<&str>| part.is_some_and(|part| part.starts_with('/'));
            if !absolute(parts.next()) || !absolute(parts.next()) {
                return wrong(format!(
                    "`volumes` has {volume:?}, which is not like /on/the/host:/in/the/container"
                ));
            }
        }
        if let Some(key) = self.authorized_keys.iter().find(|key| key.contains('\n')) {
            let start: String = key.chars().take(40).collect();
            return wrong(format!(
                "`authorized-keys` has an entry of several lines, {start:?}...; make it a list"
            ));
        }
        Ok(())
    }
}

/// What the containers of a label are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelImage {
    /// An upload of ours.
    Disk(ImageName),
    /// The name of an entry of `cloud_images`.
    Cloud(Box<str>),
    /// As runtimes name images.
    Reference(Box<str>),
}

#[derive(Debug, Clone)]
pub struct DiskImageOptions {
    pub name: ImageName,
    pub username: Option<Box<str>>,
}

#[derive(Debug, Clone)]
pub struct CloudImageOptions {
    pub name: Box<str>,
    pub choice: ImageChoice,
    pub username: Option<Box<str>>,
}

/// Which image of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageChoice {
    Id(Box<str>),
    /// Pulled when it is not there.
    Reference(Box<str>),
    Filters(Vec<ImageFilter>),
}

fn choice(image: &config::ContainerCloudImage) -> ImageChoice {
    if let Some(id) = &image.image_id {
        return ImageChoice::Id(id.as_str().into());
    }
    match &image.image_filters {
        Some(filters) => ImageChoice::Filters(image_filters(filters)),
        None => {
            let name = image.image_name.as_deref().unwrap_or(image.name.as_str());
            ImageChoice::Reference(name.into())
        }
    }
}

#[cfg(test)]
mod tests;
