//! One call to a container runtime: request, response and errors.

use std::fmt;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::Method;

/// A request of the Docker API.
#[derive(Debug)]
pub struct RuntimeCall {
    /// What the call does, as an infinitive for error texts.
    pub name: &'static str,
    pub method: Method,
    /// Path and query.
    pub uri: String,
    pub body: RuntimeCallBody,
    /// How long the call may take.
    pub limit: Duration,
}

pub enum RuntimeCallBody {
    Empty,
    Json(Bytes),
    /// A small archive.
    Tar(Bytes),
    /// A large archive, read as fast as the runtime accepts it.
    Stream(BoxBody<Bytes, io::Error>),
}

impl fmt::Debug for RuntimeCallBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Json(_) => "Json",
            Self::Tar(_) => "Tar",
            Self::Stream(_) => "Stream",
        })
    }
}

/// The response, whatever its status.
#[derive(Debug, Clone)]
pub struct RuntimeResponse {
    pub status: u16,
    pub body: Bytes,
}

/// A call without a response.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeCallError {
    /// The call had no effect.
    #[error("failed to connect to {socket}")]
    Unreachable {
        socket: String,
        #[source]
        cause: io::Error,
    },
    /// The call may have had an effect.
    #[error("the connection was closed before the response")]
    Disconnected(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
    /// The call may have had an effect.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl RuntimeCallError {
    pub(crate) fn disconnected(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Disconnected(Some(cause.into()))
    }
}

/// Carries calls to a runtime.
#[async_trait]
pub trait RuntimeTransport: fmt::Debug + Send + Sync {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError>;
}
