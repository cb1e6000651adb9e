//! A client that submits jobs to one of several servers and follows their events.
//!
//! Connections are opened on first use and reopened when lost. Jobs in flight on a lost connection are never
//! resubmitted; their outcome is reported as unknown and the caller decides.

mod admin;
mod connection;
mod events;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;

use self::connection::{ClientConnection, ServerResponse};
use crate::codec::{FrameLimits, JobPriority, Packet, StreamError};
use crate::net::{ConnectError, GearmanEndpoint, Keepalive};

pub use self::admin::{AdminClient, AdminError, ConnectedWorker, FunctionStatus, QueuedJob};
pub use self::events::{JobEvent, JobOutcome, SubmittedJob};

/// Options of a [`JobClient`].
#[derive(Clone, Debug)]
pub struct JobClientOptions {
    /// A job goes to the first server that is reachable and accepts it.
    pub servers: Vec<GearmanEndpoint>,
    /// Whether to ask servers to forward exceptions.
    pub exceptions: bool,
    pub limits: FrameLimits,
    pub connect_timeout: Duration,
    /// Timeout for the response to a request; running the job is not included.
    pub response_timeout: Duration,
    pub keepalive: Keepalive,
}

impl JobClientOptions {
    pub fn new(servers: Vec<GearmanEndpoint>) -> Self {
        Self {
            servers,
            exceptions: true,
            limits: FrameLimits::default(),
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(60),
            keepalive: Keepalive::default(),
        }
    }
}

/// A job to submit.
#[derive(Clone, Debug)]
pub struct JobRequest {
    pub function: String,
    pub payload: Bytes,
    pub unique: String,
    pub priority: JobPriority,
}

impl JobRequest {
    /// Creates a request of normal priority without a unique id.
    pub fn new(function: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            function: function.into(),
            payload: payload.into(),
            unique: String::new(),
            priority: JobPriority::Normal,
        }
    }

    #[must_use]
    pub fn unique(mut self, unique: impl Into<String>) -> Self {
        self.unique = unique.into();
        self
    }

    #[must_use]
    pub fn priority(mut self, priority: JobPriority) -> Self {
        self.priority = priority;
        self
    }

    fn packet(&self, background: bool) -> Packet {
        Packet::SubmitJob {
            priority: self.priority,
            background,
            function: Bytes::copy_from_slice(self.function.as_bytes()),
            unique: Bytes::copy_from_slice(self.unique.as_bytes()),
            payload: self.payload.clone(),
        }
    }
}

/// Identifies a job on the server that accepted it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobHandle {
    /// The index of the server in [`JobClientOptions::servers`].
    pub server: usize,
    /// The server's name for the job.
    pub handle: Bytes,
}

impl fmt::Display for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.handle))
    }
}

/// The status of a job as reported by its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusResponse {
    pub known: bool,
    pub running: bool,
    pub numerator: u64,
    pub denominator: u64,
}

/// An ERROR packet from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    pub code: String,
    pub text: String,
}

/// An error of a [`JobClient`] request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no gearman servers are configured")]
    NoServers,
    /// Nothing was submitted.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing was submitted.
    #[error("failed to send request to gearman server {server}")]
    NotSent { server: String, source: StreamError },
    /// Nothing was submitted.
    #[error("gearman server {server} refused the request: {} ({})", response.text, response.code)]
    Refused {
        server: String,
        response: ErrorResponse,
    },
    /// The request was sent but no response arrived: it may have been executed or not.
    #[error("no response from gearman server {server}; whether it executed the request is unknown")]
    OutcomeUnknown { server: String },
    #[error("gearman server {server} sent a response that does not match the request")]
    UnexpectedResponse { server: String },
}

/// Submits jobs. Clones share their connections.
#[derive(Clone, Debug)]
pub struct JobClient {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    options: JobClientOptions,
    connections: Vec<Mutex<Option<Arc<ClientConnection>>>>,
}

impl JobClient {
    /// Creates a client without connecting.
    pub fn new(options: JobClientOptions) -> Self {
        let connections = options.servers.iter().map(|_| Mutex::default()).collect();
        Self {
            inner: Arc::new(ClientInner {
                options,
                connections,
            }),
        }
    }

    /// Submits a foreground job. The server drops the job when the client disconnects.
    pub async fn submit(&self, request: &JobRequest) -> Result<SubmittedJob, ClientError> {
        let (sender, events) = connection::event_channel();
        let (handle, connection) = self.submit_to_any(request, false, Some(sender)).await?;
        Ok(SubmittedJob {
            handle,
            events,
            ended: false,
            _connection: connection,
        })
    }

    /// Submits a background job.
    pub async fn submit_background(&self, request: &JobRequest) -> Result<JobHandle, ClientError> {
        Ok(self.submit_to_any(request, true, None).await?.0)
    }

    /// Returns the status of a job.
    pub async fn status(&self, job: &JobHandle) -> Result<StatusResponse, ClientError> {
        self.request_status(
            job.server,
            &Packet::GetStatus {
                handle: job.handle.clone(),
            },
        )
        .await
    }

    /// Returns the status of the job with this unique id. Not supported by gear's server.
    pub async fn status_by_unique(
        &self,
        server: usize,
        unique: &str,
    ) -> Result<StatusResponse, ClientError> {
        let unique = Bytes::copy_from_slice(unique.as_bytes());
        self.request_status(server, &Packet::GetStatusUnique { unique })
            .await
    }

    /// Sends an echo request. Not supported by gear's server.
    pub async fn echo(&self, server: usize, data: impl Into<Bytes>) -> Result<Bytes, ClientError> {
        match self
            .request(server, &Packet::EchoReq { data: data.into() }, None)
            .await?
        {
            (ServerResponse::Echo(data), _) => Ok(data),
            _ => Err(self.unexpected_response(server)),
        }
    }

    async fn request_status(
        &self,
        server: usize,
        packet: &Packet,
    ) -> Result<StatusResponse, ClientError> {
        match self.request(server, packet, None).await? {
            (ServerResponse::Status(status), _) => Ok(status),
            _ => Err(self.unexpected_response(server)),
        }
    }

    /// Tries the servers in order until one accepts the job. Stops when it is unknown whether a server has accepted it.
    async fn submit_to_any(
        &self,
        request: &JobRequest,
        background: bool,
        events: Option<tokio::sync::mpsc::Sender<JobEvent>>,
    ) -> Result<(JobHandle, Arc<ClientConnection>), ClientError> {
        let packet = request.packet(background);
        let mut last = ClientError::NoServers;
        for server in 0..self.inner.options.servers.len() {
            match self.request(server, &packet, events.clone()).await {
                Ok((ServerResponse::Created(handle), connection)) => {
                    return Ok((JobHandle { server, handle }, connection));
                }
                Ok(_) => return Err(self.unexpected_response(server)),
                Err(
                    error @ (ClientError::OutcomeUnknown { .. }
                    | ClientError::UnexpectedResponse { .. }),
                ) => return Err(error),
                Err(ClientError::NotSent {
                    server,
                    source: source @ StreamError::Frame(_),
                }) => {
                    return Err(ClientError::NotSent { server, source });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn request(
        &self,
        server: usize,
        packet: &Packet,
        events: Option<tokio::sync::mpsc::Sender<JobEvent>>,
    ) -> Result<(ServerResponse, Arc<ClientConnection>), ClientError> {
        let connection = self.connection(server).await?;
        match connection
            .request(packet, events, &self.inner.options)
            .await?
        {
            ServerResponse::Refused(response) => Err(ClientError::Refused {
                server: self.name(server),
                response,
            }),
            response => Ok((response, connection)),
        }
    }

    async fn connection(&self, server: usize) -> Result<Arc<ClientConnection>, ClientError> {
        let (Some(slot), Some(endpoint)) = (
            self.inner.connections.get(server),
            self.inner.options.servers.get(server),
        ) else {
            return Err(ClientError::NoServers);
        };
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = ClientConnection::open(endpoint, &self.inner.options).await?;
        *slot = Some(connection.clone());
        Ok(connection)
    }

    fn name(&self, server: usize) -> String {
        self.inner
            .options
            .servers
            .get(server)
            .map_or_else(String::new, ToString::to_string)
    }

    fn unexpected_response(&self, server: usize) -> ClientError {
        ClientError::UnexpectedResponse {
            server: self.name(server),
        }
    }
}
