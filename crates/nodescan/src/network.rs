//! [`NetworkScanner`]: scans machines over the network.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
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
/// The default number of concurrent scans of one provider.
const SCANS_PER_PROVIDER: usize = 100;

/// Scans machines over the network, with limited concurrency per provider. A scan counts from when the machine accepts its
/// connection, so that machines that boot, and networks that do not respond, delay no other scan.
#[derive(Debug)]
pub struct NetworkScanner {
    scans_per_provider: usize,
    slots: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

impl NetworkScanner {
    pub fn new(scans_per_provider: usize) -> Self {
        Self {
            scans_per_provider,
            slots: Mutex::default(),
        }
    }

    fn slots_of(&self, provider: &str) -> Arc<Semaphore> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = slots.get(provider) {
            return Arc::clone(slots);
        }
        let new = Arc::new(Semaphore::new(self.scans_per_provider));
        slots.insert(provider.into(), Arc::clone(&new));
        new
    }
}

impl Default for NetworkScanner {
    fn default() -> Self {
        Self::new(SCANS_PER_PROVIDER)
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
        let deadline = Instant::now() + target.timeout.min(MAX_TIMEOUT);
        let slots = self.slots_of(&target.provider);
        let mut last = "not attempted".to_owned();
        let scan = timeout_at(deadline, scan_machine(target, &slots, &mut last)).await;
        scan.map_err(|_| ScanError::unreachable(target, last))
    }
}

/// Scans the machine as soon as it answers. `last` receives the result of the last attempt.
async fn scan_machine(target: &ScanTarget, slots: &Semaphore, last: &mut String) -> Scan {
    loop {
        match connect(target).await {
            Ok(_) if !target.has_host_keys() => return Scan::default(),
            Ok(stream) => {
                "the machine accepted a connection, but too many scans were running"
                    .clone_into(last);
                // The semaphore is never closed.
                let _slot = slots.acquire().await;
                match timeout(ATTEMPT_TIMEOUT, ssh::host_key(stream, KeyType::ALL)).await {
                    Ok(Ok((kind, key))) => {
                        "not all types of host keys were requested".clone_into(last);
                        let others = other_keys(target, kind).await;
                        return Scan {
                            keys: sort_keys(kind, key, others),
                        };
                    }
                    Ok(Err(error)) => *last = error,
                    Err(_) => *last = no_response(),
                }
            }
            Err(error) => *last = error,
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn connect(target: &ScanTarget) -> Result<TcpStream, String> {
    let connection = TcpStream::connect((&*target.address, target.port));
    match timeout(ATTEMPT_TIMEOUT, connection).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(no_response()),
    }
}

fn no_response() -> String {
    format!("no response within {} s", ATTEMPT_TIMEOUT.as_secs())
}

/// Collects the host keys of all other types. Types that the machine does not have are skipped.
async fn other_keys(target: &ScanTarget, known: KeyType) -> Vec<(KeyType, HostKey)> {
    let mut keys = Vec::new();
    for kind in KeyType::ALL.iter().copied().filter(|kind| *kind != known) {
        let attempt = async { ssh::host_key(connect(target).await?, &[kind]).await };
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
