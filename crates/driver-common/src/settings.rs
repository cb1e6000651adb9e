//! The settings of a provider that the launcher and the builder act on, whichever driver it has: limits, timeouts, how
//! machines are reached and how images are uploaded. Each driver computes them from its section of the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{ImageAccess, ImageCompression, Limit, Name, Object, PoolCommon, Seconds};
use nodeyard_driver::Error;
use nodeyard_model::{
    ConnectionPort, ImageName, Label, Limits, Opaque, PoolName, Quantity, ResourceName,
};

use crate::images::image_name;

#[derive(Debug, Clone)]
pub struct ProviderSettings {
    pub launch_timeout: Duration,
    pub boot_timeout: Duration,
    /// How often a launch is tried; at least once.
    pub launch_attempts: u64,
    /// Whether the quota of the cloud is ignored.
    pub ignore_quota: bool,
    /// Whether a request that names a provider of another cluster is declined.
    pub keeps_to_cluster: bool,
    pub pools: BTreeMap<PoolName, PoolSettings>,
}

#[derive(Debug, Clone)]
pub struct PoolSettings {
    pub priority: i64,
    pub limits: Limits,
    /// `node-attributes`, or null.
    pub attributes: Opaque,
    pub labels: BTreeMap<Label, LabelSettings>,
}

#[derive(Debug, Clone)]
pub struct LabelSettings {
    pub image: ImageSettings,
    /// Whether a machine has to accept connections before it is ready.
    pub host_key_checking: bool,
    pub access: AccessSettings,
}

#[derive(Debug, Clone)]
pub enum ImageSettings {
    /// An image of the configuration, uploaded to the provider.
    Managed(ImageName),
    /// An image of the provider, by its name in the configuration.
    Cloud(Arc<str>),
    None,
}

/// How a machine is reached, unless the driver or the image provides it.
#[derive(Debug, Clone)]
pub struct AccessSettings {
    pub connection_type: Arc<str>,
    pub connection_port: ConnectionPort,
    pub username: Option<Arc<str>>,
    pub python_path: Arc<str>,
    pub shell_type: Option<Arc<str>>,
}

/// How an image is uploaded.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageUploadSettings {
    /// The compression of files that are converted for the provider.
    pub compression: ImageCompression,
    /// `image-name-format`, if the driver has it.
    pub name_format: Option<Box<str>>,
    /// `post-upload-hook`.
    pub hook: Option<Box<str>>,
    pub timeout: Option<Duration>,
    /// Added to the metadata of the image, and stronger.
    pub metadata: Object,
    pub tags: Vec<Box<str>>,
}

impl Default for ImageUploadSettings {
    /// Files that travel are compressed as every reader knows.
    fn default() -> Self {
        Self {
            compression: ImageCompression::Zlib,
            name_format: None,
            hook: None,
            timeout: None,
            metadata: Object::default(),
            tags: Vec::new(),
        }
    }
}

impl ImageUploadSettings {
    /// Returns the settings of uploads that stay on this host.
    pub fn local() -> Self {
        Self {
            compression: ImageCompression::None,
            ..Self::default()
        }
    }
}

impl ProviderSettings {
    /// Returns the settings of a provider whose quota counts.
    pub fn new(
        launch_timeout: Seconds,
        boot_timeout: Seconds,
        launch_retries: u64,
        pools: BTreeMap<PoolName, PoolSettings>,
    ) -> Self {
        Self {
            launch_timeout: *launch_timeout,
            boot_timeout: *boot_timeout,
            launch_attempts: launch_retries.max(1),
            ignore_quota: false,
            keeps_to_cluster: false,
            pools,
        }
    }
}

impl PoolSettings {
    /// Returns the settings of a pool under its name. `limits` are those besides `max-servers`.
    pub fn of(
        pool: &PoolCommon,
        limits: impl IntoIterator<Item = (ResourceName, Limit)>,
        labels: BTreeMap<Label, LabelSettings>,
    ) -> (PoolName, Self) {
        let servers = [(ResourceName::INSTANCES, pool.max_servers)];
        let limits = servers.into_iter().chain(limits);
        let limits = limits.filter_map(|(name, limit)| Some((name, quantity(limit.0?))));
        let attributes = pool.node_attributes.as_ref();
        let settings = Self {
            priority: pool.priority,
            limits: limits.collect(),
            attributes: attributes
                .and_then(|attributes| Opaque::encode(attributes).ok())
                .unwrap_or(Opaque::NULL),
            labels,
        };
        (PoolName::new(pool.name.as_str()), settings)
    }
}

impl LabelSettings {
    /// Returns the settings of machines without an image, of which only the driver knows how they are reached.
    pub fn without_image() -> Self {
        Self {
            image: ImageSettings::None,
            host_key_checking: false,
            access: AccessSettings::default(),
        }
    }
}

impl ImageSettings {
    /// `disk` is the value of `diskimage` of a label, `cloud` the name of its other image.
    pub fn of(disk: Option<&Name>, cloud: Option<&str>) -> Result<Self, Error> {
        Ok(match (disk, cloud) {
            (Some(image), _) => Self::Managed(image_name(image)?),
            (None, Some(image)) => Self::Cloud(image.into()),
            (None, None) => Self::None,
        })
    }
}

impl Default for AccessSettings {
    fn default() -> Self {
        Self {
            connection_type: "ssh".into(),
            connection_port: ConnectionPort::Number(22),
            username: None,
            python_path: "auto".into(),
            shell_type: None,
        }
    }
}

impl AccessSettings {
    /// Returns the settings of the entry of a label's image, if it has one.
    pub fn of(entry: Option<ImageAccess<'_>>) -> Self {
        let Some(entry) = entry else {
            return Self::default();
        };
        Self {
            connection_type: entry.connection.connection_type.as_str().into(),
            connection_port: ConnectionPort::Number(entry.connection.connection_port.0),
            username: entry.username.map(Into::into),
            python_path: entry.python_path.into(),
            shell_type: entry.shell_type.map(Into::into),
        }
    }
}

/// Converts a limit of the configuration.
pub fn quantity(limit: u64) -> Quantity {
    i64::try_from(limit).unwrap_or(i64::MAX).into()
}
