//! Why nothing was fetched, and what an operator can do about it; in brackets where a cause follows.

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
    #[error(
        "the name of {origin} cannot be resolved (check the address, and the name servers of this host)"
    )]
    Resolve {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("{origin} cannot be reached (check that it runs, and that no firewall is in between)")]
    Connect {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error(
        "{origin} and this host do not agree on TLS (check its certificate; ca-bundle names further ones to trust)"
    )]
    Tls {
        origin: Origin,
        #[source]
        source: io::Error,
    },
    #[error("TLS cannot be used with {what} (check what ca-bundle and auth name)")]
    TlsSetup {
        what: Box<str>,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{origin} did not {what} within {seconds} s: check its load, and the network to it")]
    TimedOut {
        origin: Origin,
        what: &'static str,
        seconds: u64,
    },
    #[error(
        "the connection to {origin} broke (if it happens again, the log of that server or of a proxy before it says why)"
    )]
    Broken {
        origin: Origin,
        #[source]
        source: hyper::Error,
    },
    #[error("{url} redirects more than {limit} times: give the address where that ends")]
    Redirects { url: Url, limit: usize },
    #[error("{url} redirects without saying where: the server has to be put right")]
    NoLocation { url: Url },
    #[error(
        "the answer of {url} has more than {limit} bytes: check that it is the address that is meant"
    )]
    TooLarge { url: Url, limit: usize },
    #[error("cannot read the secret in {} (the user of this program must be able to)", path.display())]
    UnreadableSecret {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the environment has no variable {name}, which should hold a secret: set it where this program is started"
    )]
    NoVariable { name: Box<str> },
    #[error(
        "the secret {place} is of no use: it is too long, or has other characters than text; write it anew"
    )]
    BadSecret { place: String },
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
            | Self::BadSecret { .. } => false,
        }
    }

    /// Whether the settings of this host are the cause: elsewhere the same may work, and here when they are mended.
    ///
    /// Not so what is refused because of what its address is, `Insecure` and `Private`: whoever named the address is
    /// the cause then.
    pub fn is_of_setup(&self) -> bool {
        matches!(
            self,
            Self::TlsSetup { .. }
                | Self::UnreadableSecret { .. }
                | Self::NoVariable { .. }
                | Self::BadSecret { .. }
        )
    }
}
