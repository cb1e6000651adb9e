//! Serves the embedded store to other processes of the same user, on a unix socket with ZooKeeper's protocol.
//!
//! The client side is the [ZooKeeper client](crate::zookeeper).
//!
//! ```text
//!  client ──► connection ──writes──► engine (queue, group commit)
//!    ▲            │ reads ─────────► snapshot
//!    │            ▼
//!    └──── reply queue ◄── watches ◄── engine, at each commit
//! ```
//!
//! Two guarantees of the protocol: replies are in the order of the requests, and a client receives the event of a
//! change before it can read the change. So the engine notifies watches before it publishes a state, events and replies
//! share one [`reply_queue`], and a read reserves its position there while it reads. As in ZooKeeper, a session expires
//! if its client is silent for longer than the session timeout.

mod client;
mod connection;
mod listener;
mod private;
mod reply_queue;
mod sessions;
mod translate;
mod watches;

pub use client::{ConnectOptions, connect};
pub use listener::StoreSocket;
pub use private::{PrivateSocket, SocketBindError, SocketFile};

/// The name of the socket in the directory of the store.
pub const FILE_NAME: &str = "store.sock";
