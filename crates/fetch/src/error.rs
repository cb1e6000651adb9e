//! Why nothing was fetched.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::url::{BadUrl, Origin, Url};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    BadUrl(#[from] BadUrl),
    #[error("{url} is not encrypted: use https, or set allow-insecure")]
    Insecure { url: Url },
    #[error(
        "{origin} is at {address}, which is not a public address: set allow-private-addresses if it is meant"
    )]
    Private { origin: Origin, address: IpAddr },
    #[error("the name of {origin} cannot be resolved")]
    Resolve {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("{origin} cannot be reached")]
    Connect {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("{origin} and this host do not agree on TLS")]
    Tls {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("TLS cannot be used with {what}")]
    TlsSetup {
        what: Box<str>,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{origin} did not {what} within {seconds} s")]
    TimedOut {
        origin: Origin,
        what: &'static str,
        seconds: u64,
    },
    #[error("the connection to {origin} broke")]
    Broken {
        origin: Origin,
        #[source]
        source: hyper::Error,
    },
    #[error("{url} redirects more than {limit} times")]
    Redirects { url: Url, limit: usize },
    #[error("{url} redirects to nowhere")]
    NoLocation { url: Url },
    #[error("the answer of {url} has more than {limit} bytes")]
    TooLarge { url: Url, limit: usize },
    #[error("cannot read the secret in {}", path.display())]
    UnreadableSecret {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the environment has no variable {name}, which should hold a secret")]
    NoVariable { name: Box<str> },
    #[error("a secret is of no use: it is too long, or has other characters than text")]
    BadSecret,
}

impl Error {
    /// Whether the same may work a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::TimedOut { .. }
            | Self::Broken { .. }
            | Self::UnreadableSecret { .. } => true,
            Self::BadUrl(_)
            | Self::Insecure { .. }
            | Self::Private { .. }
            | Self::TlsSetup { .. }
            | Self::Redirects { .. }
            | Self::NoLocation { .. }
            | Self::TooLarge { .. }
            | Self::NoVariable { .. }
            | Self::BadSecret => false,
        }
    }
}
