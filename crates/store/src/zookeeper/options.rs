//! Connection options.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::tls::ZooKeeperTlsFiles;
use crate::path::TreePath;

#[derive(Debug, Clone)]
pub struct Options {
    /// Servers of one ensemble, tried in random order.
    pub hosts: Vec<Host>,
    /// The chroot, prepended to every path. It must exist before anything is created in it.
    pub chroot: TreePath,
    /// The requested session timeout; the server may grant another one.
    pub session_timeout: Duration,
    pub tls: Option<ZooKeeperTlsFiles>,
}

impl Options {
    /// Creates options without TLS and chroot, with Nodepool's session timeout.
    pub fn new(hosts: Vec<Host>) -> Self {
        Self {
            hosts,
            chroot: TreePath::root(),
            session_timeout: Duration::from_secs(10),
            tls: None,
        }
    }
}

/// One server: `name:port`, `192.0.2.1:port`, `[2001:db8::1]:port` or `unix:/path/of/socket`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Tcp {
        name: String,
        port: u16,
    },
    /// Without TLS: access is controlled by the permissions of the socket.
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid server {0:?}: use name:port, or [address]:port for IPv6")]
pub struct InvalidHost(String);

impl FromStr for Host {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidHost(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Host::Unix(PathBuf::from(path)));
        }
        let (name, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        let name = match name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            Some(address) => address,
            None if name.contains(':') => return Err(invalid()),
            None => name,
        };
        if name.is_empty() {
            return Err(invalid());
        }
        Ok(Host::Tcp {
            name: name.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp { name, port } => write!(f, "{name}:{port}"),
            Host::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_and_written() {
        for text in ["zk1:2281", "127.0.0.1:1", "[::1]:2181", "unix:/run/x"] {
            let host: Host = text.parse().unwrap();
            assert_eq!(host.to_string(), text);
        }
        assert_eq!(
            "[2001:db8::1]:2281".parse(),
            Ok(Host::Tcp {
                name: "2001:db8::1".to_owned(),
                port: 2281
            })
        );
        for bad in ["", "zk1", "zk1:", "zk1:x", ":2181", "::1:2181", "zk1:70000"] {
            assert!(bad.parse::<Host>().is_err(), "{bad}");
        }
    }
}
