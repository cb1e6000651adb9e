//! What the configuration says of providers, in the launcher's words and whatever the driver.
//!
//! A driver gets its own section from whoever makes it. This is the rest: limits, time-outs, how machines are
//! reached.

mod cluster;
mod container;
mod qemu;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{
    self as config, ImageAccess, Limit, Metastatic, OpenStackPool, OpenStackSettings, PoolCommon,
    Seconds, Static,
};
use nodeyard_model::{
    ConnectionPort, ImageName, Label, Limits, Opaque, PoolName, Quantity, ResourceName,
};

use crate::error::StartError;

pub(crate) use self::cluster::keeps_to_cluster;

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

impl Access {
    /// As the entry of a label's image says, if it has one.
    fn of(entry: Option<ImageAccess<'_>>) -> Self {
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

impl Settings {
    pub(crate) fn of(provider: &config::Provider) -> Result<Self, StartError> {
        let mut settings = match &provider.driver {
            config::Driver::Static(section) => of_static(section),
            config::Driver::Fake(section) => of_openstack(&section.settings)?,
            config::Driver::OpenStack(section) => of_openstack(&section.settings)?,
            config::Driver::Metastatic(section) => of_metastatic(section),
            config::Driver::Container(section) => container::settings(section)?,
            config::Driver::Qemu(section) => qemu::settings(section)?,
            config::Driver::Kubernetes(section) => cluster::settings(
                &section.pools,
                section.launch_retries,
                (section.scheduling_timeout).saturating_add(*section.image_pull_timeout),
            ),
            config::Driver::OpenShift(section) => cluster::settings(
                &section.pools,
                section.launch_retries,
                (section.scheduling_timeout).saturating_add(*section.image_pull_timeout),
            ),
            config::Driver::OpenShiftPods(section) => cluster::settings(
                &section.pools,
                section.launch_retries,
                (section.scheduling_timeout).saturating_add(*section.image_pull_timeout),
            ),
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

    /// Of pools that look at the quota.
    fn new(
        launch_timeout: Seconds,
        boot_timeout: Seconds,
        launch_retries: u64,
        pools: BTreeMap<PoolName, PoolSettings>,
    ) -> Self {
        Self {
            launch_timeout: *launch_timeout,
            boot_timeout: *boot_timeout,
            launch_attempts: launch_retries.max(1),
            max_launches: None,
            ignore_quota: false,
            pools,
        }
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
    let settings = Settings::new(
        section.launch_timeout,
        section.boot_timeout,
        section.launch_retries,
        pools.collect(),
    );
    Settings {
        ignore_quota: true,
        ..settings
    }
}

fn of_openstack(section: &OpenStackSettings) -> Result<Settings, StartError> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
            let settings = LabelSettings {
                image: image_of(disk, cloud.map(|name| name.as_str()))?,
                host_key_checking: label.host_key_checking,
                access: Access::of(section.image_access(disk, cloud)),
            };
            Ok((Label::new(label.name.as_str()), settings))
        });
        let labels = labels.collect::<Result<_, StartError>>()?;
        Ok(common(&pool.common, openstack_limits(pool), labels))
    });
    let settings = Settings::new(
        section.launch_timeout,
        section.boot_timeout,
        section.launch_retries,
        pools.collect::<Result<_, StartError>>()?,
    );
    Ok(Settings {
        ignore_quota: section.pools.iter().all(|pool| pool.ignore_provider_quota),
        ..settings
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

/// What a label boots from.
fn image_of(disk: Option<&config::Name>, cloud: Option<&str>) -> Result<ImageSettings, StartError> {
    Ok(match (disk, cloud) {
        (Some(image), _) => ImageSettings::Managed(ImageName::new(image.as_str())?),
        (None, Some(image)) => ImageSettings::Cloud(image.into()),
        (None, None) => ImageSettings::None,
    })
}

pub(crate) fn quantity(limit: u64) -> Quantity {
    i64::try_from(limit).unwrap_or(i64::MAX).into()
}

/// A pool whose machines take from this host.
fn local_pool(
    pool: &PoolCommon,
    (cores, ram): (Limit, Limit),
    labels: impl Iterator<Item = Result<(Label, LabelSettings), StartError>>,
) -> Result<(PoolName, PoolSettings), StartError> {
    let limits = [(ResourceName::CORES, cores), (ResourceName::RAM, ram)];
    Ok(common(pool, limits, labels.collect::<Result<_, _>>()?))
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
