//! [`NetworkScanner`]: scans machines over the network.

use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::ssh::{self, KeyType};
use crate::{HostKey, Scan, ScanError, ScanTarget, Scanner, is_simulated};

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Caps timeouts so that deadlines do not overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The maximum number of concurrent scans. Each uses one connection at a time.
const CONCURRENT_SCANS: usize = 100;

/// Scans machines over the network with limited concurrency.
#[derive(Debug)]
pub struct NetworkScanner {
    slots: Semaphore,
}

impl Default for NetworkScanner {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(CONCURRENT_SCANS),
        }
    }
}

#[async_trait]
impl Scanner for NetworkScanner {
    /// Makes one connection attempt.
    async fn is_reachable(&self, address: &str, port: u16, limit: Duration) -> bool {
        is_simulated(address)
            || matches!(
                timeout(limit, TcpStream::connect((address, port))).await,
                Ok(Ok(_))
            )
    }

    async fn scan(&self, target: &ScanTarget) -> Result<Scan, ScanError> {
        if is_simulated(&target.address) {
            let key = target.has_host_keys().then(|| "ssh-rsa FAKEKEY".into());
            return Ok(Scan {
                keys: key.into_iter().collect(),
            });
        }
        // Waiting for a slot does not count towards the timeout. The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let deadline = Instant::now() + target.timeout.min(MAX_TIMEOUT);
        let mut last = "not attempted".to_owned();
        loop {
            let attempt = timeout(ATTEMPT_TIMEOUT, preferred_key(target));
            match timeout_at(deadline, attempt).await {
                Err(_) => return Err(ScanError::unreachable(target, last)),
                Ok(Ok(Ok(None))) => return Ok(Scan::default()),
                Ok(Ok(Ok(Some((kind, key))))) => {
                    let others = other_keys(target, kind);
                    return match timeout_at(deadline, others).await {
                        Ok(others) => Ok(Scan {
                            keys: sort_keys(kind, key, others),
                        }),
                        Err(_) => Err(ScanError::unreachable(
                            target,
                            "not all types of host keys were requested".to_owned(),
                        )),
                    };
                }
                Ok(Ok(Err(error))) => last = error,
                Ok(Err(_)) => last = format!("no response within {} s", ATTEMPT_TIMEOUT.as_secs()),
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Returns the host key that the machine prefers, or `None` if the connection type has no keys.
async fn preferred_key(target: &ScanTarget) -> Result<Option<(KeyType, HostKey)>, String> {
    let stream = TcpStream::connect((&*target.address, target.port))
        .await
        .map_err(|error| error.to_string())?;
    if !target.has_host_keys() {
        return Ok(None);
    }
    let (kind, key) = ssh::host_key(stream, KeyType::ALL).await?;
    Ok(Some((kind, key)))
}

/// Collects the host keys of all other types. Types that the machine does not have are skipped.
async fn other_keys(target: &ScanTarget, known: KeyType) -> Vec<(KeyType, HostKey)> {
    let mut keys = Vec::new();
    for kind in KeyType::ALL.iter().copied().filter(|kind| *kind != known) {
        let attempt = async {
            let stream = TcpStream::connect((&*target.address, target.port))
                .await
                .map_err(|error| error.to_string())?;
            ssh::host_key(stream, &[kind]).await
        };
        match timeout(ATTEMPT_TIMEOUT, attempt).await {
            Ok(Ok(found)) => keys.push(found),
            Ok(Err(error)) => tracing::trace!(%target, ?kind, error, "no host key of this type"),
            Err(_) => tracing::debug!(%target, ?kind, "timed out requesting host key"),
        }
    }
    keys
}

fn sort_keys(kind: KeyType, key: HostKey, mut keys: Vec<(KeyType, HostKey)>) -> Vec<HostKey> {
    keys.push((kind, key));
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|(_, key)| key).collect()
}
