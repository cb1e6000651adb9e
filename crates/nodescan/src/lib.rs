//! Finds out whether a new machine answers, and which SSH host keys it has.
//!
//! A cloud calls a machine active long before anybody can log in. A [`Scanner`] waits until the machine
//! accepts connections and, for connections by SSH, collects its host keys, so that Zuul can tell the
//! machine from an impostor. A server shows one key per connection, the one the two sides agree on; so
//! there is one connection for each type of key.

mod network;
mod ssh;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

pub use network::NetworkScanner;

/// Only these connections have host keys.
pub fn gathers_keys(connection_type: &str) -> bool {
    matches!(connection_type, "ssh" | "network_cli")
}

/// A kind of connection that has no host keys.
const NO_KEYS: &str = "winrm";

/// What to scan, and for how long at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub address: Box<str>,
    pub port: u16,
    /// Ansible's name for the kind of connection.
    pub connection_type: Box<str>,
    /// The machine has to answer within this time.
    pub limit: Duration,
}

impl Target {
    pub fn gathers_keys(&self) -> bool {
        gathers_keys(&self.connection_type)
    }
}

/// Addresses of simulated machines. They are never contacted.
fn is_simulated(address: &str) -> bool {
    address.contains("fake")
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.address, self.port)
    }
}

/// A machine answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Empty for connections without host keys.
    pub keys: Vec<HostKey>,
}

/// A host key as known-hosts files have it: `<type> <base64>`.
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

/// A machine that did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("{address} port {port} did not answer within {} s; the last try: {last}", limit.as_secs_f64())]
pub struct ScanError {
    address: Box<str>,
    port: u16,
    limit: Duration,
    last: String,
}

impl ScanError {
    /// `last` says how the last try ended.
    pub fn unreachable(target: &Target, last: String) -> Self {
        Self {
            address: target.address.clone(),
            port: target.port,
            limit: target.limit,
            last,
        }
    }
}

/// Scans machines.
#[async_trait]
pub trait Scanner: fmt::Debug + Send + Sync {
    async fn scan(&self, target: &Target) -> Result<Scan, ScanError>;

    /// Whether a machine that is thought to be up still is.
    async fn answers(&self, address: &str, port: u16, limit: Duration) -> bool {
        let target = Target {
            address: address.into(),
            port,
            connection_type: NO_KEYS.into(),
            limit,
        };
        self.scan(&target).await.is_ok()
    }
}
