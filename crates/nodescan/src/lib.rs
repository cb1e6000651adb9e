//! Waits until a new machine accepts connections and collects its SSH host keys.
//!
//! Clouds report a machine as active before it accepts logins. Zuul verifies machines by their host keys. An SSH server
//! presents one key per connection, so a [`Scanner`] opens one connection for each key type.

mod network;
mod ssh;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

pub use network::NetworkScanner;

/// Returns whether connections of this type have SSH host keys.
pub fn has_host_keys(connection_type: &str) -> bool {
    matches!(connection_type, "ssh" | "network_cli")
}

/// A connection type without host keys.
const CONNECTION_WITHOUT_KEYS: &str = "winrm";

/// A machine to scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanTarget {
    /// The provider of the machine. The number of concurrent scans is limited per provider.
    pub provider: Box<str>,
    pub address: Box<str>,
    pub port: u16,
    /// Ansible's connection type.
    pub connection_type: Box<str>,
    /// How long to wait for the machine.
    pub timeout: Duration,
}

impl ScanTarget {
    pub fn has_host_keys(&self) -> bool {
        has_host_keys(&self.connection_type)
    }
}

/// Returns whether the address belongs to a simulated machine, which is never contacted.
pub fn is_simulated(address: &str) -> bool {
    address.contains("fake")
}

impl fmt::Display for ScanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.address, self.port)
    }
}

/// The result of a successful scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Empty for connections without host keys.
    pub keys: Vec<HostKey>,
}

/// A host key in the format of known-hosts files: `<type> <base64>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey(Box<str>);

impl HostKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for HostKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A machine that was not reachable within the timeout.
#[derive(Debug, thiserror::Error)]
#[error("{address} port {port} was not reachable within {} s; last attempt: {last}", timeout.as_secs_f64())]
pub struct ScanError {
    address: Box<str>,
    port: u16,
    timeout: Duration,
    last: String,
}

impl ScanError {
    /// Creates an error; `last` is the result of the last attempt.
    pub fn unreachable(target: &ScanTarget, last: String) -> Self {
        Self {
            address: target.address.clone(),
            port: target.port,
            timeout: target.timeout,
            last,
        }
    }
}

/// Scans machines.
#[async_trait]
pub trait Scanner: fmt::Debug + Send + Sync {
    /// Waits until the machine accepts connections and collects its host keys.
    async fn scan(&self, target: &ScanTarget) -> Result<Scan, ScanError>;

    /// Returns whether a running machine still accepts connections.
    async fn is_reachable(&self, address: &str, port: u16, limit: Duration) -> bool {
        let target = ScanTarget {
            provider: Box::default(),
            address: address.into(),
            port,
            connection_type: CONNECTION_WITHOUT_KEYS.into(),
            timeout: limit,
        };
        self.scan(&target).await.is_ok()
    }
}
