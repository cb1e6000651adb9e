//! Host key scans of simulated machines, by the server of their cloud.

use async_trait::async_trait;
use nodeyard_nodescan::{
    HostKey, NetworkScanner, Scan, ScanError, ScanTarget, Scanner, is_simulated,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::transport::{CallError, Http, InvalidUrl, Transport};

/// Scans host keys by calling the server of simulated clouds. Machines that it does not simulate, those of static
/// providers for example, are scanned over the network.
#[derive(Debug)]
pub struct RemoteScan {
    server: Http,
    network: NetworkScanner,
}

impl RemoteScan {
    pub fn new(url: &str) -> Result<Self, InvalidUrl> {
        Ok(Self {
            server: Http::at(url)?,
            network: NetworkScanner::default(),
        })
    }
}

#[async_trait]
impl Scanner for RemoteScan {
    async fn scan(&self, target: &ScanTarget) -> Result<Scan, ScanError> {
        let arguments = json!({
            "ip": target.address,
            "port": target.port,
            "gather_hostkeys": target.has_host_keys(),
        });
        let call = self
            .server
            .call("nodescan", arguments.to_string().into_bytes());
        let begun = Instant::now();
        let answer = timeout(target.timeout, call).await;
        let unreachable = |text: String| ScanError::unreachable(target, text);
        let result = match answer {
            Err(_) => return Err(unreachable("timed out".to_owned())),
            Ok(Err(CallError::Refused(_))) if !is_simulated(&target.address) => {
                let rest = ScanTarget {
                    timeout: target.timeout.saturating_sub(begun.elapsed()),
                    ..target.clone()
                };
                return self.network.scan(&rest).await;
            }
            Ok(Err(CallError::Refused(refusal))) => return Err(unreachable(refusal.to_string())),
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Ok(Ok(result)) => result,
        };
        let keys: Vec<String> = serde_json::from_str(result.get())
            .map_err(|error| unreachable(format!("invalid list of keys: {error}")))?;
        Ok(Scan {
            keys: keys.iter().map(|key| HostKey::from(key.as_str())).collect(),
        })
    }
}
