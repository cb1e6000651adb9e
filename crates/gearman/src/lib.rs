//! The gearman protocol on tokio: workers, clients, admin clients and a small job server.
//!
//! Gearman hands named jobs from clients to whichever worker has registered the name. This crate speaks it with
//! gearmand (C) and gear (Python) on either side, over TCP or TLS with client certificates.
//!
//! * [`worker`]: functions that come and go while the worker runs, a limit on jobs at once, any number of servers,
//!   reconnecting for ever.
//! * [`client`]: jobs in the foreground with their events, in the background with their status; the admin protocol.
//! * [`server`]: the job server for those who have none.
//! * [`codec`]: the wire format by itself.
//!
//! ```no_run
//! use bytes::Bytes;
//! use nodeyard_gearman::Endpoint;
//! use nodeyard_gearman::client::{Client, ClientOptions, JobRequest, Outcome};
//! use nodeyard_gearman::worker::{Job, Worker, WorkerOptions};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Endpoint::new("127.0.0.1", nodeyard_gearman::DEFAULT_PORT);
//!
//! let worker = Worker::new(WorkerOptions::new("Reverser", vec![server.clone()], 4));
//! worker.handle().register("reverse", async |job: Job| {
//!     job.progress(1, 2).await;
//!     let reversed: Bytes = job.payload().iter().rev().copied().collect();
//!     Ok(reversed)
//! })?;
//! let shutdown = CancellationToken::new();
//! tokio::spawn(worker.run(shutdown.clone()));
//!
//! let client = Client::new(ClientOptions::new(vec![server]));
//! let job = client.submit(&JobRequest::new("reverse", "stressed")).await?;
//! match job.wait().await {
//!     Outcome::Complete(data) => println!("{}", String::from_utf8_lossy(&data)),
//!     Outcome::Unknown => println!("the server is gone, and with it the answer"),
//!     failed => println!("{failed:?}"),
//! }
//! shutdown.cancel();
//! # Ok(())
//! # }
//! ```

pub mod client;
pub mod codec;
mod net;
pub mod server;
mod tls;
pub mod worker;

pub use self::net::{Backoff, ConnectError, DEFAULT_PORT, Endpoint, Keepalive};
pub use self::tls::{ClientTls, HostCheck, ServerTls, TlsError, TlsFiles};
