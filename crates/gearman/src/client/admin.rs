//! The admin protocol from the asking side: one line out, one line or a list that ends with a dot back.
//!
//! What is asked depends on the server: gearmand answers all of it, gear's server only `status`, `workers` and
//! `cancel job`, and to anything else it says nothing, which shows here as a missing answer.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio_util::codec::Framed;

use crate::codec::{Codec, Frame, Limits, Magic, WireError};
use crate::net::{ConnectError, Endpoint, Keepalive, Stream};

/// A worker with many thousand functions is one line.
const MAX_LINE: usize = 64 << 20;

/// Why an admin question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(
        "gearman server did not answer \"{command}\" within {limit:?}; not every server knows every command"
    )]
    NoAnswer { command: String, limit: Duration },
    #[error("gearman server closed the connection")]
    Closed,
    #[error("gearman server answered \"{answer}\" to \"{command}\"")]
    Refused { command: String, answer: String },
    #[error("\"{}\" cannot be sent as an argument of an admin command", argument.escape_debug())]
    BadArgument { argument: String },
}

/// One line of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionStatus {
    pub function: String,
    /// Jobs waiting and running.
    pub total: u64,
    pub running: u64,
    /// Connections that can do it.
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
pub struct ServerJob {
    pub handle: String,
    pub retries: u64,
    /// Whether the server will drop it when it comes up.
    pub ignored: bool,
    /// As the server tells it; gearmand shows 0 for jobs that wait as well.
    pub queued: bool,
}

/// A connection for admin commands.
#[derive(Debug)]
pub struct AdminClient {
    wire: Framed<Stream, Codec>,
    limit: Duration,
}

impl AdminClient {
    /// Connects; `limit` is for the connection and for each answer.
    pub async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Self, AdminError> {
        let stream = endpoint.connect(limit, Keepalive::default()).await?;
        let limits = Limits {
            max_line: MAX_LINE,
            ..Limits::default()
        };
        Ok(Self {
            wire: Framed::new(stream, Codec::new(Magic::Request, limits)),
            limit,
        })
    }

    /// All functions the server knows, in its order.
    pub async fn status(&mut self) -> Result<Vec<FunctionStatus>, AdminError> {
        let lines = self.list("status").await?;
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

    /// All connections, those of clients included.
    pub async fn workers(&mut self) -> Result<Vec<ConnectedWorker>, AdminError> {
        let lines = self.list("workers").await?;
        parse_all("workers", lines, |line| {
            let (who, functions) = line.split_once(" :")?;
            let mut who = who.splitn(3, ' ');
            Some(ConnectedWorker {
                connection: who.next()?.to_owned(),
                address: who.next()?.to_owned(),
                client_id: who.next()?.to_owned(),
                functions: functions
                    .split_ascii_whitespace()
                    .map(str::to_owned)
                    .collect(),
            })
        })
    }

    pub async fn version(&mut self) -> Result<String, AdminError> {
        let answer = self.line("version").await?;
        Ok(answer.strip_prefix("OK ").unwrap_or(&answer).to_owned())
    }

    pub async fn show_jobs(&mut self) -> Result<Vec<ServerJob>, AdminError> {
        let lines = self.list("show jobs").await?;
        parse_all("show jobs", lines, |line| {
            let mut columns = line.split('\t');
            Some(ServerJob {
                handle: columns.next()?.to_owned(),
                retries: columns.next()?.parse().ok()?,
                ignored: columns.next()? != "0",
                queued: columns.next()? != "0",
            })
        })
    }

    pub async fn show_unique_jobs(&mut self) -> Result<Vec<String>, AdminError> {
        self.list("show unique jobs").await
    }

    /// Takes a waiting job out of its queue. False if the server does not know it as waiting.
    pub async fn cancel_job(&mut self, handle: &str) -> Result<bool, AdminError> {
        let command = format!("cancel job {}", argument(handle)?);
        match self.line(&command).await?.as_str() {
            "OK" => Ok(true),
            answer if answer.starts_with("ERR UNKNOWN_JOB") => Ok(false),
            answer => Err(AdminError::Refused {
                command,
                answer: answer.to_owned(),
            }),
        }
    }

    /// Limits how many jobs of a function may wait; none lifts the limit.
    pub async fn max_queue(
        &mut self,
        function: &str,
        limit: Option<u32>,
    ) -> Result<(), AdminError> {
        let limit = limit.map_or(-1, i64::from);
        let command = format!("maxqueue {} {limit}", argument(function)?);
        match self.line(&command).await?.as_str() {
            "OK" => Ok(()),
            answer => Err(AdminError::Refused {
                command,
                answer: answer.to_owned(),
            }),
        }
    }

    async fn line(&mut self, command: &str) -> Result<String, AdminError> {
        self.ask(command).await?;
        self.answer(command).await
    }

    async fn list(&mut self, command: &str) -> Result<Vec<String>, AdminError> {
        self.ask(command).await?;
        let mut lines = Vec::new();
        loop {
            let line = self.answer(command).await?;
            if line == "." {
                return Ok(lines);
            }
            if lines.is_empty() && line.starts_with("ERR ") {
                return Err(AdminError::Refused {
                    command: command.to_owned(),
                    answer: line,
                });
            }
            lines.push(line);
        }
    }

    async fn ask(&mut self, command: &str) -> Result<(), AdminError> {
        let stream = self.wire.get_mut();
        stream
            .write_all(format!("{command}\n").as_bytes())
            .await
            .map_err(WireError::from)?;
        Ok(stream.flush().await.map_err(WireError::from)?)
    }

    async fn answer(&mut self, command: &str) -> Result<String, AdminError> {
        loop {
            let frame = tokio::time::timeout(self.limit, self.wire.next()).await;
            let silent = |_| AdminError::NoAnswer {
                command: command.to_owned(),
                limit: self.limit,
            };
            match frame.map_err(silent)?.ok_or(AdminError::Closed)?? {
                Frame::Line(line) => return Ok(line),
                // Servers wake everything that is connected.
                Frame::Packet(_) => {}
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
            answer: line,
        }),
    };
    lines.into_iter().map(parse).collect()
}
