//! Errors of requests, with remedies for operators (in brackets where a source error follows).

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use nodeyard_tls::TlsError;

use crate::url::{Origin, Url, UrlError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    UrlError(#[from] UrlError),
    #[error("refused to fetch {url} without encryption: use https, or set allow-insecure")]
    Insecure { url: Url },
    #[error(
        "refused to connect to {origin} at {address}, which is not a public address: set allow-private-addresses to allow it"
    )]
    PrivateAddress { origin: Origin, address: IpAddr },
    #[error(
        "failed to resolve the host name of {origin} (check the URL and the name servers of this host)"
    )]
    Resolve {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error(
        "failed to connect to {origin} (check that it is running and not blocked by a firewall)"
    )]
    Connect {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error(
        "TLS handshake with {origin} failed (check its certificate; ca-bundle adds trusted CA certificates)"
    )]
    Tls {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("failed to configure TLS (check the files that ca-bundle and auth name)")]
    TlsSetup(#[from] TlsError),
    #[error("{origin} did not {what} within {seconds} s: check its load, and the network to it")]
    TimedOut {
        origin: Origin,
        what: &'static str,
        seconds: u64,
    },
    #[error(
        "connection to {origin} failed (if it persists, check the log of that server or its proxy)"
    )]
    ConnectionFailed {
        origin: Origin,
        #[source]
        source: hyper::Error,
    },
    #[error("{url} redirects more than {limit} times: use the final URL")]
    TooManyRedirects { url: Url, limit: usize },
    #[error("{url} redirects without a Location header: fix the server")]
    MissingLocation { url: Url },
    #[error("the response of {url} exceeds {limit} bytes: check the URL")]
    TooLarge { url: Url, limit: usize },
    #[error("failed to read the secret in {} (the user running this program needs read permission)", path.display())]
    UnreadableSecret {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "environment variable {name}, which should contain a secret, is not set: set it where this program is started"
    )]
    MissingVariable { name: Box<str> },
    #[error(
        "invalid secret {place}: it is too long or contains characters that are not allowed in a header"
    )]
    InvalidSecret { place: String },
}

impl Error {
    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::TimedOut { .. }
            | Self::ConnectionFailed { .. }
            | Self::UnreadableSecret { .. } => true,
            Self::UrlError(_)
            | Self::Insecure { .. }
            | Self::PrivateAddress { .. }
            | Self::TlsSetup(_)
            | Self::TooManyRedirects { .. }
            | Self::MissingLocation { .. }
            | Self::TooLarge { .. }
            | Self::MissingVariable { .. }
            | Self::InvalidSecret { .. } => false,
        }
    }

    /// Returns whether the configuration of this host is the cause, so that the request may succeed on another host.
    ///
    /// False for `Insecure` and `PrivateAddress`, which are caused by the URL.
    pub fn is_local_configuration(&self) -> bool {
        matches!(
            self,
            Self::TlsSetup(_)
                | Self::UnreadableSecret { .. }
                | Self::MissingVariable { .. }
                | Self::InvalidSecret { .. }
        )
    }
}
