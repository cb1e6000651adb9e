//! The runtime behind its unix socket.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::transport::{Answer, Call, CallBody, CallError, Transport};

/// The longest are those of a pull, which tells about each layer several times a second.
const MAX_ANSWER: usize = 64 << 20;

/// Podman's for root, Docker's.
const USUAL_PLACES: [&str; 2] = ["/run/podman/podman.sock", "/run/docker.sock"];

/// Each call has a connection of its own, which ends with it: what is dropped is not waited for by the runtime.
#[derive(Debug, Clone)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// As configured, with or without `unix://`; otherwise the first of the usual places where there is one.
    pub fn find(configured: Option<&str>) -> Self {
        if let Some(path) = configured {
            return Self::new(path.strip_prefix("unix://").unwrap_or(path));
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = own.map(|directory| directory.join("podman/podman.sock"));
        let mut places: Vec<PathBuf> = USUAL_PLACES.iter().map(PathBuf::from).collect();
        // Whoever is not root has a Podman of their own, and usually no right to use the other ones.
        let at = if rustix::process::geteuid().is_root() {
            places.len()
        } else {
            0
        };
        if let Some(own) = own {
            places.insert(at, own);
        }
        let usual = Path::new(USUAL_PLACES[0]);
        let found = places.iter().find(|place| place.exists());
        Self::new(found.map_or(usual, PathBuf::as_path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn exchange(&self, call: Call) -> Result<Answer, CallError> {
        let unreachable = |cause| CallError::Unreachable {
            socket: self.path.display().to_string(),
            cause,
        };
        let stream = UnixStream::connect(&self.path).await.map_err(unreachable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(CallError::no_answer)?;
        let request = request(call)?;
        let answer = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(CallError::no_answer)?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
            let body = body.await.map_err(CallError::no_answer)?.to_bytes();
            Ok(Answer { status, body })
        };
        tokio::pin!(answer, connection);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            ended = &mut connection => match ended {
                // What arrived before the end is still to be read.
                Ok(()) => answer.await,
                Err(cause) => Err(CallError::no_answer(cause)),
            },
        }
    }
}

#[async_trait]
impl Transport for Socket {
    async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let limit = call.limit;
        timeout(limit, self.exchange(call))
            .await
            .unwrap_or(Err(CallError::TooLate(limit)))
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

fn request(call: Call) -> Result<Request<Body>, CallError> {
    let full = |bytes| Full::new(bytes).map_err(|never| match never {}).boxed();
    let (kind, body): (_, Body) = match call.body {
        CallBody::Empty => (None, Empty::new().map_err(|never| match never {}).boxed()),
        CallBody::Json(bytes) => (Some("application/json"), full(bytes)),
        CallBody::Tar(bytes) => (Some("application/x-tar"), full(bytes)),
        CallBody::Stream(body) => (Some("application/x-tar"), body),
    };
    let mut request = Request::builder()
        .method(call.method)
        .uri(call.uri)
        .header(HOST, "localhost");
    if let Some(kind) = kind {
        request = request.header(CONTENT_TYPE, kind);
    }
    request.body(body).map_err(CallError::no_answer)
}
