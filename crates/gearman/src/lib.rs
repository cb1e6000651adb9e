//! The gearman protocol on tokio: workers, clients, admin clients and a small job server.
//!
//! Gearman hands named jobs from clients to whichever worker has registered the name. This crate speaks it with
//! gearmand (C) and gear (Python) on either side, over TCP or TLS with client certificates.
//!
//! * [`worker`]: registers functions and runs their jobs, with a limit on concurrent jobs; reconnects to every server.
//! * [`client`]: submits foreground and background jobs and follows them; speaks the admin protocol.
//! * [`server`]: an in-memory job server.
//! * [`codec`]: the wire format.
//!
//! ```no_run
//! use bytes::Bytes;
//! use nodeyard_gearman::GearmanEndpoint;
//! use nodeyard_gearman::client::{JobClient, JobClientOptions, JobOutcome, JobRequest};
//! use nodeyard_gearman::worker::{JobWorker, JobWorkerOptions, Job};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = GearmanEndpoint::new("127.0.0.1", nodeyard_gearman::DEFAULT_PORT);
//!
//! let worker = JobWorker::new(JobWorkerOptions::new("Reverser", vec![server.clone()], 4));
//! worker.handle().register("reverse", async |job: Job| {
//!     job.progress(1, 2).await;
//!     let reversed: Bytes = job.payload().iter().rev().copied().collect();
//!     Ok(reversed)
//! })?;
//! let shutdown = CancellationToken::new();
//! tokio::spawn(worker.run(shutdown.clone()));
//!
//! let client = JobClient::new(JobClientOptions::new(vec![server]));
//! let job = client.submit(&JobRequest::new("reverse", "stressed")).await?;
//! match job.wait().await {
//!     JobOutcome::Complete(data) => println!("{}", String::from_utf8_lossy(&data)),
//!     JobOutcome::Unknown => println!("the connection was lost before the result arrived"),
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

pub use self::net::{ConnectError, DEFAULT_PORT, GearmanEndpoint, Keepalive, ReconnectBackoff};
pub use self::tls::{ClientTls, GearmanTlsError, HostCheck, ServerTls, TlsFiles};
