//! Host key scans by the server of simulated clouds.

use async_trait::async_trait;
use nodeyard_nodescan::{HostKey, Scan, ScanError, ScanTarget, Scanner};
use serde_json::json;

use crate::transport::{CallError, Http, InvalidUrl, Transport};

/// Scans host keys by calling the server of simulated clouds.
#[derive(Debug)]
pub struct RemoteScan {
    server: Http,
}

impl RemoteScan {
    pub fn new(url: &str) -> Result<Self, InvalidUrl> {
        Ok(Self {
            server: Http::at(url)?,
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
        let answer = tokio::time::timeout(target.timeout, call).await;
        let unreachable = |text: String| ScanError::unreachable(target, text);
        let result = match answer {
            Err(_) => return Err(unreachable("timed out".to_owned())),
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
