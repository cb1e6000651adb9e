//! A client of QMP, the protocol of QEMU's control sockets: one command at a time, and the events of a guest.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::host::GuestFault;

/// The socket for commands in the directory of a machine.
pub(super) const SOCKET: &str = "qmp.sock";
/// The socket for events. QEMU serves one client at a time, and commands must not wait for a watcher.
pub(super) const EVENTS: &str = "events.sock";
/// QEMU answers at once, even if its guest is busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longer responses are not expected.
const MAX_LINE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    #[error("failed to connect to the control socket")]
    Connection(#[from] io::Error),
    #[error("no response on the control socket within {ANSWER_LIMIT:?}")]
    Timeout,
    #[error("invalid response {text:?}")]
    Protocol { text: String },
    #[error("{description}")]
    Refused { description: String },
}

#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum QmpMessage {
    Event {
        event: String,
    },
    Return {
        #[serde(rename = "return")]
        value: Value,
    },
    Error {
        error: QmpRefusal,
    },
    Greeting {
        #[serde(rename = "QMP")]
        _version: Value,
    },
}

#[derive(Deserialize)]
struct QmpRefusal {
    desc: String,
}

impl Qmp {
    /// Connects to the QEMU that runs in `directory`.
    pub(super) async fn connect(directory: &Path) -> Result<Self, QmpError> {
        Self::connect_to(directory, SOCKET).await
    }

    async fn connect_to(directory: &Path, socket: &str) -> Result<Self, QmpError> {
        let connecting = async {
            // The path of a socket is limited in length; that of the directory is not.
            let directory = std::fs::File::open(directory)?;
            let path = format!("/proc/self/fd/{}/{socket}", directory.as_raw_fd());
            let mut qmp = Self {
                stream: BufReader::new(UnixStream::connect(path).await?),
            };
            match qmp.read().await? {
                QmpMessage::Greeting { .. } => {}
                _ => {
                    return Err(QmpError::Protocol {
                        text: "no greeting".to_owned(),
                    });
                }
            }
            qmp.exchange("qmp_capabilities", &Value::Null).await?;
            Ok(qmp)
        };
        timeout(ANSWER_LIMIT, connecting)
            .await
            .map_err(|_| QmpError::Timeout)?
    }

    pub(super) async fn execute(&mut self, command: &str) -> Result<Value, QmpError> {
        self.execute_with(command, &Value::Null).await
    }

    /// Executes a command of the human monitor.
    pub(super) async fn monitor(&mut self, line: &str) -> Result<String, QmpError> {
        let arguments = json!({"command-line": line});
        let answer = self
            .execute_with("human-monitor-command", &arguments)
            .await?;
        let text = answer.as_str().map(ToOwned::to_owned);
        text.ok_or_else(|| QmpError::Protocol {
            text: answer.to_string(),
        })
    }

    /// Returns why QEMU paused the guest for good, if it did.
    pub(super) async fn guest_fault(&mut self) -> Result<Option<GuestFault>, QmpError> {
        let status = self.execute("query-status").await?;
        Ok(match status.get("status").and_then(Value::as_str) {
            Some("internal-error") => Some(GuestFault::InternalError),
            Some("guest-panicked") => Some(GuestFault::Panicked),
            Some("io-error") => {
                let devices = self.execute("query-block").await?;
                let full = devices.as_array().into_iter().flatten().any(|device| {
                    device
                        .get("io-status")
                        .is_some_and(|status| status == "nospace")
                });
                Some(if full {
                    GuestFault::HostDiskFull
                } else {
                    GuestFault::IoError
                })
            }
            _ => None,
        })
    }

    pub(super) async fn execute_with(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<Value, QmpError> {
        let exchange = self.exchange(command, arguments);
        timeout(ANSWER_LIMIT, exchange)
            .await
            .map_err(|_| QmpError::Timeout)?
    }

    async fn exchange(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let mut line = match arguments {
            Value::Null => json!({"execute": command}),
            arguments => json!({"execute": command, "arguments": arguments}),
        }
        .to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).await?;
        loop {
            match self.read().await? {
                QmpMessage::Return { value } => return Ok(value),
                QmpMessage::Error { error } => {
                    return Err(QmpError::Refused {
                        description: error.desc,
                    });
                }
                QmpMessage::Event { .. } | QmpMessage::Greeting { .. } => {}
            }
        }
    }

    /// Returns when QEMU may have paused the guest for good.
    pub(super) async fn wait_for_fault(directory: &Path) -> Result<(), QmpError> {
        let mut qmp = Self::connect_to(directory, EVENTS).await?;
        if qmp.guest_fault().await?.is_some() {
            return Ok(());
        }
        loop {
            if let QmpMessage::Event { event } = qmp.read().await?
                && matches!(
                    &*event,
                    "STOP" | "SHUTDOWN" | "RESET" | "GUEST_PANICKED" | "BLOCK_IO_ERROR"
                )
            {
                return Ok(());
            }
        }
    }

    async fn read(&mut self) -> Result<QmpMessage, QmpError> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_LINE);
        limited.read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        serde_json::from_slice(&line).map_err(|_| {
            let text = String::from_utf8_lossy(&line);
            QmpError::Protocol {
                text: text.chars().take(200).collect(),
            }
        })
    }
}
