//! Connects to the store of another process.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::error::{Error, Result};
use crate::tree::Tree;
use crate::zookeeper::{Host, Options, ZooKeeper};

#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The session timeout.
    pub session_timeout: Duration,
    /// Timeout for the connection.
    pub patience: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(10),
        }
    }
}

/// Connects to the process that owns the store. The handle reconnects when that process is restarted.
pub async fn connect(path: &Path, options: ConnectOptions) -> Result<Arc<dyn Tree>> {
    // Fails early if no process serves the store.
    if let Err(source) = UnixStream::connect(path).await {
        let remedy = match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ": no process owns this store at the moment; start one with `nodeyard up`"
            }
            io::ErrorKind::PermissionDenied => ": it is open to its owner only",
            _ => "",
        };
        return Err(Error::Backend {
            context: format!(
                "failed to connect to the store at {}{remedy}",
                path.display()
            ),
            source: Box::new(source),
        });
    }
    let host = Host::Unix(path.to_owned());
    let client = ZooKeeper::connect(Options {
        session_timeout: options.session_timeout,
        ..Options::new(vec![host])
    });
    client.connected(options.patience).await?;
    Ok(client)
}
