//! A client: submits jobs to one of several servers and hears what becomes of them.
//!
//! Connections are made when first needed and made again when lost. What was under way on a lost connection is
//! never submitted again behind the caller's back: the outcome is reported as unknown, and the caller decides.

mod admin;
mod connection;
mod events;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;

use self::connection::{Answer, Connection};
use crate::codec::{Limits, Packet, Priority, WireError};
use crate::net::{ConnectError, Endpoint, Keepalive};

pub use self::admin::{AdminClient, AdminError, ConnectedWorker, FunctionStatus, ServerJob};
pub use self::events::{JobEvent, Outcome, SubmittedJob};

/// How a [`Client`] works.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A job goes to the first of them that can be reached and takes it.
    pub servers: Vec<Endpoint>,
    /// Ask servers to pass on exceptions.
    pub exceptions: bool,
    pub limits: Limits,
    pub connect_timeout: Duration,
    /// How long a server may take to answer a request (not to do the job).
    pub answer_timeout: Duration,
    pub keepalive: Keepalive,
}

impl ClientOptions {
    pub fn new(servers: Vec<Endpoint>) -> Self {
        Self {
            servers,
            exceptions: true,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            keepalive: Keepalive::default(),
        }
    }
}

/// A job to be submitted.
#[derive(Clone, Debug)]
pub struct JobRequest {
    pub function: String,
    pub payload: Bytes,
    pub unique: String,
    pub priority: Priority,
}

impl JobRequest {
    /// A job of normal priority without a unique.
    pub fn new(function: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            function: function.into(),
            payload: payload.into(),
            unique: String::new(),
            priority: Priority::Normal,
        }
    }

    #[must_use]
    pub fn unique(mut self, unique: impl Into<String>) -> Self {
        self.unique = unique.into();
        self
    }

    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
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

/// A job on the server that took it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobHandle {
    /// The place of the server in the client's list.
    pub server: usize,
    /// The server's name for the job.
    pub handle: Bytes,
}

impl fmt::Display for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.handle))
    }
}

/// What a server knows of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    pub known: bool,
    pub running: bool,
    pub numerator: u64,
    pub denominator: u64,
}

/// A server's reason not to do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: String,
    pub text: String,
}

/// Why a request was not answered as hoped.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no gearman servers are configured")]
    NoServers,
    /// Nothing was submitted.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing was submitted.
    #[error("request cannot be sent to gearman server {server}")]
    NotSent { server: String, source: WireError },
    /// Nothing was submitted.
    #[error("gearman server {server} refused: {} ({})", refusal.text, refusal.code)]
    Refused { server: String, refusal: Refusal },
    /// The request was sent and the connection was lost or fell silent: it may have been carried out or not.
    #[error("gearman server {server} did not answer; whether it acted on the request is unknown")]
    OutcomeUnknown { server: String },
    #[error("gearman server {server} gave an answer to another question")]
    OutOfStep { server: String },
}

/// Submits jobs. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ClientOptions,
    connections: Vec<Mutex<Option<Arc<Connection>>>>,
}

impl Client {
    /// Makes no connection yet.
    pub fn new(options: ClientOptions) -> Self {
        let connections = options.servers.iter().map(|_| Mutex::default()).collect();
        Self {
            inner: Arc::new(Inner {
                options,
                connections,
            }),
        }
    }

    /// Submits a job and stays with it. When the client goes away, so does the job.
    pub async fn submit(&self, request: &JobRequest) -> Result<SubmittedJob, ClientError> {
        let (sender, events) = connection::event_channel();
        let (handle, connection) = self.place(request, false, Some(sender)).await?;
        Ok(SubmittedJob {
            handle,
            events,
            ended: false,
            _connection: connection,
        })
    }

    /// Submits a job that nobody waits for.
    pub async fn submit_background(&self, request: &JobRequest) -> Result<JobHandle, ClientError> {
        Ok(self.place(request, true, None).await?.0)
    }

    /// What the job's server knows of it.
    pub async fn status(&self, job: &JobHandle) -> Result<JobStatus, ClientError> {
        self.ask_status(
            job.server,
            &Packet::GetStatus {
                handle: job.handle.clone(),
            },
        )
        .await
    }

    /// What one server knows of the job with this unique. gear's server does not answer this question.
    pub async fn status_by_unique(
        &self,
        server: usize,
        unique: &str,
    ) -> Result<JobStatus, ClientError> {
        let unique = Bytes::copy_from_slice(unique.as_bytes());
        self.ask_status(server, &Packet::GetStatusUnique { unique })
            .await
    }

    /// Sends bytes to one server and back. gear's server does not answer.
    pub async fn echo(&self, server: usize, data: impl Into<Bytes>) -> Result<Bytes, ClientError> {
        match self
            .ask(server, &Packet::EchoReq { data: data.into() }, None)
            .await?
        {
            (Answer::Echo(data), _) => Ok(data),
            _ => Err(self.out_of_step(server)),
        }
    }

    async fn ask_status(&self, server: usize, packet: &Packet) -> Result<JobStatus, ClientError> {
        match self.ask(server, packet, None).await? {
            (Answer::Status(status), _) => Ok(status),
            _ => Err(self.out_of_step(server)),
        }
    }

    /// Tries the servers until one takes the job, except after a loss that leaves open whether one has.
    async fn place(
        &self,
        request: &JobRequest,
        background: bool,
        events: Option<tokio::sync::mpsc::Sender<JobEvent>>,
    ) -> Result<(JobHandle, Arc<Connection>), ClientError> {
        let packet = request.packet(background);
        let mut last = ClientError::NoServers;
        for server in 0..self.inner.options.servers.len() {
            match self.ask(server, &packet, events.clone()).await {
                Ok((Answer::Created(handle), connection)) => {
                    return Ok((JobHandle { server, handle }, connection));
                }
                Ok(_) => return Err(self.out_of_step(server)),
                Err(
                    error @ (ClientError::OutcomeUnknown { .. } | ClientError::OutOfStep { .. }),
                ) => return Err(error),
                Err(ClientError::NotSent {
                    server,
                    source: source @ WireError::Frame(_),
                }) => {
                    return Err(ClientError::NotSent { server, source });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask(
        &self,
        server: usize,
        packet: &Packet,
        events: Option<tokio::sync::mpsc::Sender<JobEvent>>,
    ) -> Result<(Answer, Arc<Connection>), ClientError> {
        let connection = self.connection(server).await?;
        match connection
            .request(packet, events, &self.inner.options)
            .await?
        {
            Answer::Refused(refusal) => Err(ClientError::Refused {
                server: self.name(server),
                refusal,
            }),
            answer => Ok((answer, connection)),
        }
    }

    async fn connection(&self, server: usize) -> Result<Arc<Connection>, ClientError> {
        let (Some(slot), Some(endpoint)) = (
            self.inner.connections.get(server),
            self.inner.options.servers.get(server),
        ) else {
            return Err(ClientError::NoServers);
        };
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_gone()) {
            return Ok(connection.clone());
        }
        let connection = Connection::open(endpoint, &self.inner.options).await?;
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

    fn out_of_step(&self, server: usize) -> ClientError {
        ClientError::OutOfStep {
            server: self.name(server),
        }
    }
}
