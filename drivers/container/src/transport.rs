//! One call to a container runtime, whatever carries it.

use std::fmt;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::Method;

/// A call as the Docker API has it.
#[derive(Debug)]
pub struct Call {
    /// What is asked for, in a word or two; for messages.
    pub name: &'static str,
    pub method: Method,
    /// Path and query.
    pub uri: String,
    pub body: CallBody,
    /// How long it may take.
    pub limit: Duration,
}

pub enum CallBody {
    Empty,
    Json(Bytes),
    /// A small archive.
    Tar(Bytes),
    /// A large one, read as fast as the runtime takes it.
    Stream(BoxBody<Bytes, io::Error>),
}

impl fmt::Debug for CallBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Json(_) => "Json",
            Self::Tar(_) => "Tar",
            Self::Stream(_) => "Stream",
        })
    }
}

/// What the runtime said, whether it agreed or not.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing has happened.
    #[error("nobody answers at {socket}")]
    Unreachable {
        socket: String,
        #[source]
        cause: io::Error,
    },
    /// It may or may not have happened.
    #[error("the connection broke before the answer")]
    NoAnswer(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
    /// It may or may not have happened.
    #[error("no answer within {} s", .0.as_secs())]
    TooLate(Duration),
}

impl CallError {
    pub(crate) fn no_answer(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::NoAnswer(Some(cause.into()))
    }
}

/// A way to a runtime.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    async fn call(&self, call: Call) -> Result<Answer, CallError>;
}
