//! What the configuration says of providers, in the launcher's words and whatever the driver.
//!
//! A driver gets its own section from whoever makes it. This is the rest: limits, time-outs, how machines are
//! reached.

mod container;
mod qemu;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{
    self as config, Limit, Metastatic, OpenStackPool, OpenStackSettings, PoolCommon, Static,
};
use nodeyard_model::{
    ConnectionPort, ImageName, Label, Limits, Opaque, PoolName, Quantity, ResourceName,
};

use crate::error::StartError;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) launch_timeout: Duration,
    pub(crate) boot_timeout: Duration,
    /// How often a launch is tried; at least once.
    pub(crate) launch_attempts: u64,
    /// `max-concurrency`; none is without limit.
    pub(crate) max_launches: Option<usize>,
    /// No pool looks at the cloud's quota.
    pub(crate) ignore_quota: bool,
    pub(crate) pools: BTreeMap<PoolName, PoolSettings>,
}

#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    pub(crate) priority: i64,
    pub(crate) limits: Limits,
    /// `node-attributes`, or null.
    pub(crate) attributes: Opaque,
    pub(crate) labels: BTreeMap<Label, LabelSettings>,
}

#[derive(Debug, Clone)]
pub(crate) struct LabelSettings {
    pub(crate) image: ImageSettings,
    /// Whether a machine has to answer before it is ready.
    pub(crate) host_key_checking: bool,
    pub(crate) access: Access,
}

#[derive(Debug, Clone)]
pub(crate) enum ImageSettings {
    /// Ours, uploaded to the provider.
    Managed(ImageName),
    /// The provider's, by its name in the configuration.
    Cloud(Arc<str>),
    None,
}

/// How a machine is reached, unless the driver or the image knows better.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) connection_type: Arc<str>,
    pub(crate) connection_port: ConnectionPort,
    pub(crate) username: Option<Arc<str>>,
    pub(crate) python_path: Arc<str>,
    pub(crate) shell_type: Option<Arc<str>>,
}

impl Default for Access {
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

impl Settings {
    pub(crate) fn of(provider: &config::Provider) -> Result<Self, StartError> {
        let mut settings = match &provider.driver {
            config::Driver::Static(section) => of_static(section),
            config::Driver::Fake(section) => of_openstack(&section.settings)?,
            config::Driver::OpenStack(section) => of_openstack(&section.settings)?,
            config::Driver::Metastatic(section) => of_metastatic(section),
            config::Driver::Container(section) => container::settings(section)?,
            config::Driver::Qemu(section) => qemu::settings(section)?,
            other => {
                return Err(StartError::NoSettings {
                    driver: other.name(),
                });
            }
        };
        let launches = provider.common.max_concurrency.0;
        settings.max_launches = launches.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        Ok(settings)
    }
}

fn of_static(section: &Static) -> Settings {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.nodes.iter().flat_map(|node| node.labels.iter());
        let labels = labels.map(|label| {
            let settings = LabelSettings {
                image: ImageSettings::None,
                host_key_checking: false,
                access: Access::default(),
            };
            (Label::new(label.as_str()), settings)
        });
        common(&pool.common, [], labels.collect())
    });
    Settings {
        launch_timeout: Duration::ZERO,
        boot_timeout: Duration::ZERO,
        launch_attempts: 1,
        max_launches: None,
        ignore_quota: true,
        pools: pools.collect(),
    }
}

fn of_metastatic(section: &Metastatic) -> Settings {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let settings = LabelSettings {
                image: ImageSettings::None,
                host_key_checking: label.host_key_checking,
                // The node that carries the slot knows better.
                access: Access::default(),
            };
            (Label::new(label.name.as_str()), settings)
        });
        common(&pool.common, [], labels.collect())
    });
    Settings {
        launch_timeout: *section.launch_timeout,
        boot_timeout: *section.boot_timeout,
        launch_attempts: section.launch_retries.max(1),
        max_launches: None,
        ignore_quota: true,
        pools: pools.collect(),
    }
}

fn of_openstack(section: &OpenStackSettings) -> Result<Settings, StartError> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let settings = LabelSettings {
                image: match (&label.diskimage, &label.cloud_image) {
                    (Some(image), _) => ImageSettings::Managed(ImageName::new(image.as_str())?),
                    (None, Some(image)) => ImageSettings::Cloud(image.as_str().into()),
                    (None, None) => ImageSettings::None,
                },
                host_key_checking: label.host_key_checking,
                access: openstack_access(section, label),
            };
            Ok((Label::new(label.name.as_str()), settings))
        });
        let labels = labels.collect::<Result<_, StartError>>()?;
        Ok(common(&pool.common, openstack_limits(pool), labels))
    });
    Ok(Settings {
        launch_timeout: *section.launch_timeout,
        boot_timeout: *section.boot_timeout,
        launch_attempts: section.launch_retries.max(1),
        max_launches: None,
        ignore_quota: section.pools.iter().all(|pool| pool.ignore_provider_quota),
        pools: pools.collect::<Result<_, StartError>>()?,
    })
}

fn openstack_limits(pool: &OpenStackPool) -> [(ResourceName, Limit); 4] {
    [
        (ResourceName::CORES, pool.max_cores),
        (ResourceName::RAM, pool.max_ram),
        ("volumes".into(), pool.max_volumes),
        ("volume-gb".into(), pool.max_volume_gb),
    ]
}

fn openstack_access(section: &OpenStackSettings, label: &config::OpenStackLabel) -> Access {
    let disk = label
        .diskimage
        .as_ref()
        .and_then(|name| section.diskimages.iter().find(|image| image.name == *name));
    let cloud = label.cloud_image.as_ref().and_then(|name| {
        section
            .cloud_images
            .iter()
            .find(|image| image.name == *name)
    });
    let connection = disk
        .map(|image| &image.connection)
        .or(cloud.map(|image| &image.connection));
    Access {
        connection_type: connection.map_or("ssh".into(), |c| c.connection_type.as_str().into()),
        connection_port: ConnectionPort::Number(connection.map_or(22, |c| c.connection_port.0)),
        username: cloud
            .and_then(|image| image.username.as_deref())
            .map(Into::into),
        python_path: cloud.map_or("auto".into(), |image| image.python_path.as_str().into()),
        shell_type: cloud
            .and_then(|image| image.shell_type.as_deref())
            .map(Into::into),
    }
}

pub(crate) fn quantity(limit: u64) -> Quantity {
    i64::try_from(limit).unwrap_or(i64::MAX).into()
}

fn common(
    pool: &PoolCommon,
    limits: impl IntoIterator<Item = (ResourceName, Limit)>,
    labels: BTreeMap<Label, LabelSettings>,
) -> (PoolName, PoolSettings) {
    let servers = [(ResourceName::INSTANCES, pool.max_servers)];
    let limits = servers.into_iter().chain(limits);
    let limits = limits.filter_map(|(name, limit)| Some((name, quantity(limit.0?))));
    let attributes = pool.node_attributes.as_ref();
    let settings = PoolSettings {
        priority: pool.priority,
        limits: limits.collect(),
        attributes: attributes
            .and_then(|attributes| Opaque::encode(attributes).ok())
            .unwrap_or(Opaque::NULL),
        labels,
    };
    (PoolName::new(pool.name.as_str()), settings)
}
