//! Commands in pods and their output, over WebSocket: for people, and for git.
//!
//! Only a few kilobytes are buffered: a slow reader slows down the writer, so a push of gigabytes takes no memory.

pub mod git;

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, LogParams};
use kube::{Api, Client, Config};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy};

use crate::body::pod::DEFAULT_CONTAINER;

/// The buffer in each direction.
const BUFFER: usize = 64 << 10;

/// A container to run commands in.
#[derive(Clone)]
pub struct Container {
    pub client: Client,
    pub namespace: String,
    pub pod: String,
    /// None for the default container of the pod, or else the first.
    pub container: Option<String>,
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Container({}/{})", self.namespace, self.pod)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("failed to run a command in pod {pod} of {namespace}")]
    Refused {
        namespace: String,
        pod: String,
        #[source]
        cause: Box<kube::Error>,
    },
    #[error("the connection to the pod broke before the command ended")]
    Broken,
    #[error("failed to run the command: {0}")]
    NotRun(String),
    #[error("failed to write the output of the command")]
    Output(#[source] io::Error),
    #[error("{0}")]
    Credentials(&'static str),
    #[error("invalid credentials of the node")]
    Client(#[source] Box<kube::Error>),
}

impl Container {
    fn refused(&self, cause: kube::Error) -> ExecError {
        ExecError::Refused {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            cause: Box::new(cause),
        }
    }

    /// Returns the container to name in calls, which the API server requires if there are several. None if the pod may not
    /// be read.
    async fn name(&self) -> Option<String> {
        if self.container.is_some() {
            return self.container.clone();
        }
        let pod = self.pods().get(&self.pod).await.ok()?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let default = annotations.get(DEFAULT_CONTAINER).cloned();
        default.or_else(|| Some(pod.spec?.containers.into_iter().next()?.name))
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Runs a command, without a shell, and returns its exit code.
    pub async fn run<I, O, E>(
        &self,
        command: &[String],
        stdin: Option<I>,
        mut stdout: O,
        mut stderr: E,
    ) -> Result<u8, ExecError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let wanted = AttachParams {
            container: self.name().await,
            stdin: stdin.is_some(),
            stdout: true,
            stderr: true,
            tty: false,
            max_stdin_buf_size: Some(BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            max_stderr_buf_size: Some(BUFFER),
        };
        let process = self.pods().exec(&self.pod, command, &wanted).await;
        let mut process = process.map_err(|cause| self.refused(cause))?;
        let status = process.take_status();
        let (said, complained) = (process.stdout(), process.stderr());
        let input = process.stdin();
        let feed = async {
            if let (Some(mut from), Some(mut to)) = (stdin, input) {
                // The command may end without reading everything.
                let _ = copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            }
            std::future::pending::<()>().await;
        };
        let listen = async {
            let out = async {
                if let Some(mut said) = said {
                    copy(&mut said, &mut stdout).await?;
                }
                stdout.flush().await
            };
            let err = async {
                if let Some(mut complained) = complained {
                    copy(&mut complained, &mut stderr).await?;
                }
                stderr.flush().await
            };
            let (out, err) = tokio::join!(out, err);
            out.and(err)
        };
        tokio::select! {
            heard = listen => heard.map_err(ExecError::Output)?,
            () = feed => {}
        }
        match status {
            Some(status) => exit_code(status.await),
            None => Err(ExecError::Broken),
        }
    }

    /// Writes the log of the container to `to`; with `follow`, also new lines.
    pub async fn logs(
        &self,
        follow: bool,
        lines: Option<i64>,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<(), ExecError> {
        let wanted = LogParams {
            container: self.name().await,
            follow,
            tail_lines: lines,
            ..LogParams::default()
        };
        let log = self.pods().log_stream(&self.pod, &wanted).await;
        let mut log = std::pin::pin!(log.map_err(|cause| self.refused(cause))?);
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = log.read(&mut buffer).await.map_err(|_| ExecError::Broken)?;
            let Some(text) = buffer.get(..count).filter(|text| !text.is_empty()) else {
                return Ok(());
            };
            to.write_all(text).await.map_err(ExecError::Output)?;
            to.flush().await.map_err(ExecError::Output)?;
        }
    }
}

fn exit_code(status: Option<Status>) -> Result<u8, ExecError> {
    let status = status.ok_or(ExecError::Broken)?;
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .and_then(|details| details.causes)
        .unwrap_or_default();
    let code = causes
        .iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_deref()?.parse::<i32>().ok());
    match code {
        Some(code) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
        None => Err(ExecError::NotRun(status.message.unwrap_or_default())),
    }
}

/// The credentials in a node's record.
#[derive(Deserialize)]
pub struct Credentials {
    pub namespace: String,
    pub pod: Option<String>,
    host: String,
    token: String,
    #[serde(default)]
    skiptls: bool,
    ca_crt: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.namespace)
    }
}

impl Credentials {
    pub fn client(&self) -> Result<Client, ExecError> {
        let host = self.host.parse();
        let host = host.map_err(|_| {
            ExecError::Credentials("the record of the node has no valid address of an API server")
        })?;
        let mut config = Config::new(host);
        config.accept_invalid_certs = self.skiptls;
        config.auth_info.token = Some(self.token.clone().into());
        if let Some(encoded) = &self.ca_crt {
            let odd = ExecError::Credentials(
                "the record of the node has an invalid certificate authority",
            );
            config.root_cert = Some(certificates(encoded).ok_or(odd)?);
        }
        Client::try_from(config).map_err(|cause| ExecError::Client(Box::new(cause)))
    }
}

/// Decodes the certificates of a PEM file in base64.
fn certificates(encoded: &str) -> Option<Vec<Vec<u8>>> {
    let pem = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let mut found = Vec::new();
    for part in pem.split("-----BEGIN CERTIFICATE-----").skip(1) {
        let (body, _) = part.split_once("-----END CERTIFICATE-----")?;
        let body: String = body.split_whitespace().collect();
        found.push(STANDARD.decode(body).ok()?);
    }
    Some(found)
}
