//! A client of the gearman admin protocol: a command is one line, the response one line or a list that ends with a dot.
//!
//! gearmand implements all commands. gear's server implements only `status`, `workers` and `cancel job` and ignores the
//! rest, which is reported as [`AdminError::NoResponse`].

use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio_util::codec::Framed;

use crate::codec::{Codec, FrameLimits, GearmanFrame, Magic, StreamError};
use crate::net::{ConnectError, GearmanEndpoint, Keepalive, ServerStream};

/// Large, because a worker with many thousand functions is listed on one line.
const MAX_LINE: usize = 64 << 20;

/// An error of an admin command.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Wire(#[from] StreamError),
    #[error(
        "timed out waiting for gearman server to answer \"{command}\" after {limit:?}; it may not support the command"
    )]
    NoResponse { command: String, limit: Duration },
    #[error("gearman server closed the connection")]
    Closed,
    #[error("gearman server answered \"{response}\" to \"{command}\"")]
    Refused { command: String, response: String },
    #[error("invalid argument \"{}\" of an admin command: it is empty or contains whitespace or control characters", argument.escape_debug())]
    BadArgument { argument: String },
}

/// One line of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionStatus {
    pub function: String,
    /// Jobs waiting and running.
    pub total: u64,
    pub running: u64,
    /// Connections that registered the function.
    pub workers: u64,
}

/// One line of `workers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedWorker {
    pub connection: String,
    pub address: String,
    pub client_id: String,
    pub functions: Vec<String>,
}

/// One line of `show jobs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    pub handle: String,
    pub retries: u64,
    /// Whether the server will discard the job when it reaches the front of the queue.
    pub ignored: bool,
    /// As reported by the server; gearmand reports 0 for waiting jobs too.
    pub queued: bool,
}

/// A connection for admin commands.
#[derive(Debug)]
pub struct AdminClient {
    wire: Framed<ServerStream, Codec>,
    limit: Duration,
}

impl AdminClient {
    /// Connects. `limit` bounds the connection attempt and the wait for each response.
    pub async fn connect(endpoint: &GearmanEndpoint, limit: Duration) -> Result<Self, AdminError> {
        let stream = endpoint.connect(limit, Keepalive::default()).await?;
        let limits = FrameLimits {
            max_line: MAX_LINE,
            ..FrameLimits::default()
        };
        Ok(Self {
            wire: Framed::new(stream, Codec::new(Magic::Request, limits)),
            limit,
        })
    }

    /// Lists all functions known to the server, in its order.
    pub async fn status(&mut self) -> Result<Vec<FunctionStatus>, AdminError> {
        let lines = self.request_list("status").await?;
        parse_all("status", lines, |line| {
            let mut columns = line.split('\t');
            Some(FunctionStatus {
                function: columns.next()?.to_owned(),
                total: columns.next()?.parse().ok()?,
                running: columns.next()?.parse().ok()?,
                workers: columns.next()?.parse().ok()?,
            })
        })
    }

    /// Lists all connections, including those of clients.
    pub async fn workers(&mut self) -> Result<Vec<ConnectedWorker>, AdminError> {
        let lines = self.request_list("workers").await?;
        parse_all("workers", lines, |line| {
            let (worker, functions) = line.split_once(" :")?;
            let mut worker = worker.splitn(3, ' ');
            Some(ConnectedWorker {
                connection: worker.next()?.to_owned(),
                address: worker.next()?.to_owned(),
                client_id: worker.next()?.to_owned(),
                functions: functions
                    .split_ascii_whitespace()
                    .map(str::to_owned)
                    .collect(),
            })
        })
    }

    pub async fn version(&mut self) -> Result<String, AdminError> {
        let response = self.request_line("version").await?;
        Ok(response.strip_prefix("OK ").unwrap_or(&response).to_owned())
    }

    pub async fn show_jobs(&mut self) -> Result<Vec<QueuedJob>, AdminError> {
        let lines = self.request_list("show jobs").await?;
        parse_all("show jobs", lines, |line| {
            let mut columns = line.split('\t');
            Some(QueuedJob {
                handle: columns.next()?.to_owned(),
                retries: columns.next()?.parse().ok()?,
                ignored: columns.next()? != "0",
                queued: columns.next()? != "0",
            })
        })
    }

    pub async fn show_unique_jobs(&mut self) -> Result<Vec<String>, AdminError> {
        self.request_list("show unique jobs").await
    }

    /// Cancels a waiting job. Returns false if no waiting job has this handle.
    pub async fn cancel_job(&mut self, handle: &str) -> Result<bool, AdminError> {
        let command = format!("cancel job {}", argument(handle)?);
        match self.request_line(&command).await?.as_str() {
            "OK" => Ok(true),
            response if response.starts_with("ERR UNKNOWN_JOB") => Ok(false),
            response => Err(AdminError::Refused {
                command,
                response: response.to_owned(),
            }),
        }
    }

    /// Limits how many jobs of a function may wait; `None` removes the limit.
    pub async fn max_queue(
        &mut self,
        function: &str,
        limit: Option<u32>,
    ) -> Result<(), AdminError> {
        let limit = limit.map_or(-1, i64::from);
        let command = format!("maxqueue {} {limit}", argument(function)?);
        match self.request_line(&command).await?.as_str() {
            "OK" => Ok(()),
            response => Err(AdminError::Refused {
                command,
                response: response.to_owned(),
            }),
        }
    }

    /// Removes a function that has neither workers nor jobs. Returns false if it still has some, or does not exist.
    pub async fn drop_function(&mut self, function: &str) -> Result<bool, AdminError> {
        let command = format!("drop function {}", argument(function)?);
        match self.request_line(&command).await?.as_str() {
            "OK" => Ok(true),
            response @ ("ERR UNKNOWN_COMMAND" | "ERR PERMISSION_DENIED") => {
                Err(AdminError::Refused {
                    command,
                    response: response.to_owned(),
                })
            }
            _ => Ok(false),
        }
    }

    async fn request_line(&mut self, command: &str) -> Result<String, AdminError> {
        self.send_command(command).await?;
        self.read_response(command).await
    }

    async fn request_list(&mut self, command: &str) -> Result<Vec<String>, AdminError> {
        self.send_command(command).await?;
        let mut lines = Vec::new();
        loop {
            let line = self.read_response(command).await?;
            if line == "." {
                return Ok(lines);
            }
            if lines.is_empty() && line.starts_with("ERR ") {
                return Err(AdminError::Refused {
                    command: command.to_owned(),
                    response: line,
                });
            }
            lines.push(line);
        }
    }

    async fn send_command(&mut self, command: &str) -> Result<(), AdminError> {
        let stream = self.wire.get_mut();
        stream
            .write_all(format!("{command}\n").as_bytes())
            .await
            .map_err(StreamError::from)?;
        Ok(stream.flush().await.map_err(StreamError::from)?)
    }

    async fn read_response(&mut self, command: &str) -> Result<String, AdminError> {
        loop {
            let frame = tokio::time::timeout(self.limit, self.wire.next()).await;
            let timed_out = |_| AdminError::NoResponse {
                command: command.to_owned(),
                limit: self.limit,
            };
            match frame.map_err(timed_out)?.ok_or(AdminError::Closed)?? {
                GearmanFrame::Line(line) => return Ok(line),
                // Servers send NOOP to every connection.
                GearmanFrame::Packet(_) => {}
            }
        }
    }
}

fn argument(text: &str) -> Result<&str, AdminError> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(AdminError::BadArgument {
            argument: text.to_owned(),
        });
    }
    Ok(text)
}

fn parse_all<T>(
    command: &str,
    lines: Vec<String>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, AdminError> {
    let parse = |line: String| match parse(&line) {
        Some(value) => Ok(value),
        None => Err(AdminError::Refused {
            command: command.to_owned(),
            response: line,
        }),
    };
    lines.into_iter().map(parse).collect()
}
