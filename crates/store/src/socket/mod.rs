//! The embedded store for other processes of the same user: a unix socket beside its file.
//!
//! What is spoken on it is ZooKeeper's protocol, so the other end is the ZooKeeper client, and every
//! tool that speaks it can be pointed here through a forwarder. The owner's process answers from the same
//! engine that its own handles use.
//!
//! ```text
//!  client ──► connection ──writes──► engine (queue, group commit)
//!    ▲            │ reads ─────────► snapshot
//!    │            ▼
//!    └──────── outbox ◄── watch table ◄── engine, at each commit
//! ```
//!
//! Two promises of the protocol shape the code. Answers come in the order of the requests. And a client
//! hears of a change before it can read it: the engine tells the watch tables before it shows the new state
//! to readers, both put what they have to say into the same [`outbox`], and a read takes its place there
//! at the moment at which it looks.
//!
//! A client that falls silent longer than its session timeout loses the session, as with ZooKeeper.

mod client;
mod connection;
mod listener;
mod outbox;
mod sessions;
mod translate;
mod watches;

pub use client::{ConnectOptions, connect};
pub use listener::Socket;

/// The name of the socket in the directory of the store.
pub const FILE_NAME: &str = "store.sock";
