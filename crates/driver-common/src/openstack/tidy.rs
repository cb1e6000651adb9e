//! Removing what cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::OpenStackSettings;
use nodeyard_driver::{Error, ResourceKind, Tidied};
use nodeyard_model::Timestamp;

/// What is removed.
#[derive(Debug, Clone, Copy)]
pub struct TidyOptions {
    pub floating_ips: bool,
    /// Between two looks at ports; zero switches their removal off.
    pub port_interval: Duration,
}

impl TidyOptions {
    pub fn of(settings: &OpenStackSettings) -> Self {
        Self {
            floating_ips: settings.clean_floating_ips,
            port_interval: *settings.port_cleanup_interval,
        }
    }
}

/// A cloud with things in it that carry no tags.
#[async_trait]
pub trait Untagged: Sync {
    /// Removes those that lead nowhere, and says how many.
    async fn remove_floating_ips(&self) -> Result<usize, Error>;

    /// The ports that are down and may be of servers that are gone.
    async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error>;

    /// Whether it may be removed, and is.
    async fn remove_port(&self, port: &str) -> Result<bool, Error>;
}

/// Ports that were down at the last look. A port is down for a moment while its server is made: only what is down at two
/// looks that are an interval apart may go.
#[derive(Debug, Default)]
pub struct DownPorts(Mutex<Option<Look>>);

#[derive(Debug)]
struct Look {
    at: Timestamp,
    ports: BTreeSet<Box<str>>,
}

impl DownPorts {
    pub async fn tidy(
        &self,
        cloud: &impl Untagged,
        options: TidyOptions,
        now: Timestamp,
    ) -> Result<Vec<Tidied>, Error> {
        let mut floating_ips = 0;
        if options.floating_ips {
            floating_ips = cloud.remove_floating_ips().await?;
        }
        let mut ports = 0;
        if !options.port_interval.is_zero() {
            ports = self.remove_ports(cloud, options.port_interval, now).await?;
        }
        let counts = [
            (ResourceKind::FLOATING_IPS, floating_ips),
            (ResourceKind::PORTS, ports),
        ];
        let some = counts.into_iter().filter(|(_, count)| *count > 0);
        Ok(some.map(|(kind, count)| Tidied { kind, count }).collect())
    }

    async fn remove_ports(
        &self,
        cloud: &impl Untagged,
        interval: Duration,
        now: Timestamp,
    ) -> Result<usize, Error> {
        let Some(before) = self.before(now, interval) else {
            return Ok(0);
        };
        let mut ports = cloud.down_ports().await?;
        let mut removed = 0;
        for port in &before {
            if ports.remove(port) && cloud.remove_port(port).await? {
                removed += 1;
            }
        }
        self.seen(now, ports);
        Ok(removed)
    }

    /// Those of the last look. None if that is less than an interval ago: it is too early for another.
    fn before(&self, now: Timestamp, interval: Duration) -> Option<BTreeSet<Box<str>>> {
        match &*self.lock() {
            Some(last) if now.since(last.at) < interval => None,
            Some(last) => Some(last.ports.clone()),
            None => Some(BTreeSet::new()),
        }
    }

    /// `ports` are down, and stay for the next look to judge.
    fn seen(&self, now: Timestamp, ports: BTreeSet<Box<str>>) {
        *self.lock() = Some(Look { at: now, ports });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_go_at_the_second_look_that_finds_it() {
        let at = |secs| Timestamp::from_secs(secs).unwrap();
        let interval = Duration::from_secs(10);
        let down = DownPorts::default();
        assert_eq!(down.before(at(0.0), interval), Some(BTreeSet::new()));
        let ports = BTreeSet::from(["a".into()]);
        down.seen(at(0.0), ports.clone());
        assert_eq!(down.before(at(9.0), interval), None);
        assert_eq!(down.before(at(10.0), interval), Some(ports));
    }
}
