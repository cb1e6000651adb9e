//! Deletes leftovers that cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::OpenStackSettings;
use nodeyard_driver::{Collected, Error, ResourceKind};
use tokio::time::Instant;

/// Which leftovers are deleted.
#[derive(Debug, Clone, Copy)]
pub struct TidyOptions {
    pub floating_ips: bool,
    /// Between two scans of the ports; zero disables their deletion.
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

/// A cloud that has resources without tags.
#[async_trait]
pub trait Untagged: Sync {
    /// Deletes the floating IPs that are not assigned, and returns how many.
    async fn remove_floating_ips(&self) -> Result<usize, Error>;

    /// Lists the ports that are down and whose server may be gone.
    async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error>;

    /// Deletes a port. Returns false if the cloud does not permit it.
    async fn remove_port(&self, port: &str) -> Result<bool, Error>;
}

/// The ports that were down at the last scan. A port is down for a moment while its server is created, so only a port
/// that is down at two scans an interval apart is deleted.
#[derive(Debug, Default)]
pub struct DownPorts(Mutex<Option<PortScan>>);

#[derive(Debug)]
struct PortScan {
    at: Instant,
    ports: BTreeSet<Box<str>>,
}

impl DownPorts {
    pub async fn collect_garbage(
        &self,
        cloud: &impl Untagged,
        options: TidyOptions,
    ) -> Result<Vec<Collected>, Error> {
        let mut floating_ips = 0;
        if options.floating_ips {
            floating_ips = cloud.remove_floating_ips().await?;
        }
        let mut ports = 0;
        if !options.port_interval.is_zero() {
            ports = self.delete_ports(cloud, options.port_interval).await?;
        }
        let counts = [
            (ResourceKind::FLOATING_IPS, floating_ips),
            (ResourceKind::PORTS, ports),
        ];
        let some = counts.into_iter().filter(|(_, count)| *count > 0);
        Ok(some
            .map(|(kind, count)| Collected { kind, count })
            .collect())
    }

    async fn delete_ports(
        &self,
        cloud: &impl Untagged,
        interval: Duration,
    ) -> Result<usize, Error> {
        let Some(before) = self.last_scan(interval) else {
            return Ok(0);
        };
        let mut ports = cloud.down_ports().await?;
        let mut deleted = 0;
        for port in &before {
            if ports.remove(port) && cloud.remove_port(port).await? {
                deleted += 1;
            }
        }
        let at = Instant::now();
        *self.lock() = Some(PortScan { at, ports });
        Ok(deleted)
    }

    /// Returns the ports of the last scan, or None if that was less than an interval ago.
    fn last_scan(&self, interval: Duration) -> Option<BTreeSet<Box<str>>> {
        match &*self.lock() {
            Some(last) if last.at.elapsed() < interval => None,
            Some(last) => Some(last.ports.clone()),
            None => Some(BTreeSet::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<PortScan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CloudWithDownPort;

    #[async_trait]
    impl Untagged for CloudWithDownPort {
        async fn remove_floating_ips(&self) -> Result<usize, Error> {
            Ok(0)
        }

        async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error> {
            Ok(BTreeSet::from(["a".into()]))
        }

        async fn remove_port(&self, _: &str) -> Result<bool, Error> {
            Ok(true)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_is_deleted_at_the_second_scan_that_finds_it() {
        let options = TidyOptions {
            floating_ips: false,
            port_interval: Duration::from_secs(10),
        };
        let down = DownPorts::default();
        let collect = || down.collect_garbage(&CloudWithDownPort, options);
        assert_eq!(collect().await.unwrap(), []);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(collect().await.unwrap(), [], "too early for another scan");
        tokio::time::advance(Duration::from_secs(1)).await;
        let (kind, count) = (ResourceKind::PORTS, 1);
        assert_eq!(collect().await.unwrap(), [Collected { kind, count }]);
    }
}
