//! Scans over the network.

use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::ssh::{self, KeyType};
use crate::{HostKey, Scan, ScanError, Scanner, Target, is_simulated};

const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);
/// From refused to accepted is a matter of moments when a machine boots.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// What nobody waits for, and the clock can still count.
const LONGEST_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);
/// As many machines boot at once in a burst; each scan is a handful of connections, one after the other.
const CONCURRENT_SCANS: usize = 100;

/// Contacts machines, a limited number at a time.
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
    /// By one try to connect.
    async fn answers(&self, address: &str, port: u16, limit: Duration) -> bool {
        is_simulated(address)
            || matches!(
                timeout(limit, TcpStream::connect((address, port))).await,
                Ok(Ok(_))
            )
    }

    async fn scan(&self, target: &Target) -> Result<Scan, ScanError> {
        if is_simulated(&target.address) {
            let key = target.gathers_keys().then(|| "ssh-rsa FAKEKEY".into());
            return Ok(Scan {
                keys: key.into_iter().collect(),
            });
        }
        // The time spent waiting for a slot is ours, not the machine's. The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let deadline = Instant::now() + target.limit.min(LONGEST_LIMIT);
        let mut last = "none was made".to_owned();
        loop {
            let attempt = timeout(ATTEMPT_LIMIT, first_answer(target));
            match timeout_at(deadline, attempt).await {
                Err(_) => return Err(ScanError::unreachable(target, last)),
                Ok(Ok(Ok(None))) => return Ok(Scan::default()),
                Ok(Ok(Ok(Some((kind, key))))) => {
                    let others = other_keys(target, kind);
                    return match timeout_at(deadline, others).await {
                        Ok(others) => Ok(Scan {
                            keys: in_order(kind, key, others),
                        }),
                        Err(_) => Err(ScanError::unreachable(
                            target,
                            "not all types of host keys were asked for".to_owned(),
                        )),
                    };
                }
                Ok(Ok(Err(error))) => last = error,
                Ok(Err(_)) => last = format!("no answer for {} s", ATTEMPT_LIMIT.as_secs()),
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// The key that the machine shows when it may choose; none if the connection has no keys.
async fn first_answer(target: &Target) -> Result<Option<(KeyType, HostKey)>, String> {
    let stream = TcpStream::connect((&*target.address, target.port))
        .await
        .map_err(|error| error.to_string())?;
    if !target.gathers_keys() {
        return Ok(None);
    }
    let (kind, key) = ssh::host_key(stream, KeyType::ALL).await?;
    Ok(Some((kind, key)))
}

/// The keys of all other types. A type that the machine does not have is not worth a word.
async fn other_keys(target: &Target, known: KeyType) -> Vec<(KeyType, HostKey)> {
    let mut keys = Vec::new();
    for kind in KeyType::ALL.iter().copied().filter(|kind| *kind != known) {
        let attempt = async {
            let stream = TcpStream::connect((&*target.address, target.port))
                .await
                .map_err(|error| error.to_string())?;
            ssh::host_key(stream, &[kind]).await
        };
        match timeout(ATTEMPT_LIMIT, attempt).await {
            Ok(Ok(found)) => keys.push(found),
            Ok(Err(error)) => tracing::trace!(%target, ?kind, error, "no host key of this type"),
            Err(_) => tracing::debug!(%target, ?kind, "no answer about this type of host key"),
        }
    }
    keys
}

fn in_order(kind: KeyType, key: HostKey, mut keys: Vec<(KeyType, HostKey)>) -> Vec<HostKey> {
    keys.push((kind, key));
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|(_, key)| key).collect()
}
