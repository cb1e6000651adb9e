//! The sockets of a [job server](super::JobServer): TCP, or a unix socket for processes of the same user.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    /// A process of this user.
    Unix {
        user: u32,
    },
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, address) = listener.accept().await?;
                Ok((Socket::Tcp(socket), Peer::Tcp(address)))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                let user = socket.peer_cred()?.uid();
                Ok((Socket::Unix(socket), Peer::Unix { user }))
            }
        }
    }
}

impl Peer {
    /// Returns the address that admin commands show. Other gearman servers show one for each connection.
    pub(super) fn ip(self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            Self::Unix { .. } => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { user } => write!(f, "user {user}"),
        }
    }
}
