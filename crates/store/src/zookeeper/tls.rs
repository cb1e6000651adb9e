//! TLS with a client certificate.
//!
//! Like Python's ZooKeeper client, this verifies the server's certificate chain but by default not its host name,
//! because deployments rely on that.

use std::path::PathBuf;

use nodeyard_tls::{HostCheck, IdentityFiles, TlsError};
use rustls::ClientConfig;

/// PEM files, reloaded for each connection so that certificates can be replaced at runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZooKeeperTlsFiles {
    /// The trusted CA certificates.
    pub ca: PathBuf,
    /// The client certificate, followed by intermediate certificates.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Whether to verify the host name in the server's certificate.
    pub verify_hostname: bool,
}

impl ZooKeeperTlsFiles {
    /// Loads and validates the files. Connecting does this too; call it to report configuration errors early.
    pub fn load(&self) -> Result<ClientConfig, TlsError> {
        let check = if self.verify_hostname {
            HostCheck::Name
        } else {
            HostCheck::ChainOnly
        };
        let identity = IdentityFiles {
            cert: &self.cert,
            key: &self.key,
        };
        nodeyard_tls::client_config(nodeyard_tls::read_roots(&self.ca)?, check, Some(identity))
    }
}
