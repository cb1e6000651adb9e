//! The behaviour of a simulated cloud: the provider's key `simulate`.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_config::{self as config, SimulatedTime};

/// Empty lists of zones, flavors, images and networks stand for a default set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Simulate {
    pub boot_time: Span,
    pub delete_time: Span,
    pub upload_time: Span,
    pub quota: Quota,
    /// By the name of the call; `*` is every call without an entry, `boot` is what happens to a server
    /// between its creation and the time it would be active.
    pub failures: BTreeMap<String, FailureRates>,
    pub zones: Vec<String>,
    pub flavors: Vec<FlavorOptions>,
    pub images: Vec<String>,
    pub networks: Vec<String>,
    pub seed: u64,
}

impl Simulate {
    pub fn of(section: &config::Simulate) -> Self {
        let quota = &section.quota;
        let failures = section.failures.iter().map(|(call, failure)| {
            let rates = FailureRates {
                error: failure.error,
                lost: failure.lost,
                hang: failure.hang,
                class: failure.class.clone(),
            };
            (call.clone(), rates)
        });
        let flavors = section.flavors.iter().map(|flavor| FlavorOptions {
            name: flavor.name.clone(),
            ram: flavor.ram,
            vcpus: flavor.vcpus,
            disk: flavor.disk,
        });
        Self {
            boot_time: Span::of(section.boot_time),
            delete_time: Span::of(section.delete_time),
            upload_time: Span::of(section.upload_time),
            quota: Quota {
                cores: quota.cores,
                instances: quota.instances,
                ram: quota.ram,
                volumes: quota.volumes,
                volume_gb: quota.volume_gb,
            },
            failures: failures.collect(),
            zones: section.zones.clone(),
            flavors: flavors.collect(),
            images: section.images.clone(),
            networks: section.networks.clone(),
            seed: section.seed,
        }
    }
}

/// A duration that is drawn at random for each event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub min: Duration,
    pub max: Duration,
}

impl Span {
    fn of(time: SimulatedTime) -> Self {
        Self {
            min: *time.min,
            max: *time.max,
        }
    }

    pub const fn exactly(time: Duration) -> Self {
        Self {
            min: time,
            max: time,
        }
    }
}

/// The limits of the cloud; -1 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub cores: i64,
    pub instances: i64,
    /// In MB.
    pub ram: i64,
    pub volumes: i64,
    pub volume_gb: i64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            cores: 100,
            instances: 20,
            ram: 1_000_000,
            volumes: 100,
            volume_gb: 1_000_000,
        }
    }
}

/// How often a call fails, and how. Rates are between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureRates {
    /// The call has no effect and returns an error.
    pub error: f64,
    /// The call takes effect, its response is lost.
    pub lost: f64,
    /// The call has no effect and never returns.
    pub hang: f64,
    /// The class of the errors; `quota` stands for an exceeded quota.
    pub class: String,
}

impl Default for FailureRates {
    fn default() -> Self {
        Self {
            error: 0.0,
            lost: 0.0,
            hang: 0.0,
            class: "HttpException".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlavorOptions {
    pub name: String,
    /// In MB.
    pub ram: u64,
    pub vcpus: u64,
    /// In GB.
    pub disk: u64,
}
