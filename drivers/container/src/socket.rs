//! Carries calls to the runtime through its unix socket.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::transport::{
    RuntimeCall, RuntimeCallBody, RuntimeCallError, RuntimeResponse, RuntimeTransport,
};

/// The longest response is that of a pull, with several lines a second for each layer.
const MAX_RESPONSE: usize = 64 << 20;

/// The sockets of root's Podman and of Docker.
const DEFAULT_PATHS: [&str; 2] = ["/run/podman/podman.sock", "/run/docker.sock"];

/// The socket of a runtime. Each call has its own connection, so that a dropped call closes it.
#[derive(Debug, Clone)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the configured socket, with or without `unix://`, or else the first default path that exists.
    pub fn find(configured: Option<&str>) -> Self {
        if let Some(path) = configured {
            return Self::new(path.strip_prefix("unix://").unwrap_or(path));
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = own.map(|directory| directory.join("podman/podman.sock"));
        let mut paths: Vec<PathBuf> = DEFAULT_PATHS.iter().map(PathBuf::from).collect();
        // Other users than root have a Podman of their own and usually no access to the other sockets.
        let at = if rustix::process::geteuid().is_root() {
            paths.len()
        } else {
            0
        };
        if let Some(own) = own {
            paths.insert(at, own);
        }
        let default = Path::new(DEFAULT_PATHS[0]);
        let found = paths.iter().find(|path| path.exists());
        Self::new(found.map_or(default, PathBuf::as_path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn exchange(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let unreachable = |cause| RuntimeCallError::Unreachable {
            socket: self.path.display().to_string(),
            cause,
        };
        let stream = UnixStream::connect(&self.path).await.map_err(unreachable)?;
        let response = nodeyard_fetch::exchange(stream, request(call)?, MAX_RESPONSE)
            .await
            .map_err(RuntimeCallError::disconnected)?;
        Ok(RuntimeResponse {
            status: response.status().as_u16(),
            body: response.into_body(),
        })
    }
}

#[async_trait]
impl RuntimeTransport for Socket {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let limit = call.limit;
        timeout(limit, self.exchange(call))
            .await
            .unwrap_or(Err(RuntimeCallError::Timeout(limit)))
    }
}

type RequestBody = BoxBody<Bytes, std::io::Error>;

fn request(call: RuntimeCall) -> Result<Request<RequestBody>, RuntimeCallError> {
    let full = |bytes| Full::new(bytes).map_err(|never| match never {}).boxed();
    let (kind, body): (_, RequestBody) = match call.body {
        RuntimeCallBody::Empty => (None, Empty::new().map_err(|never| match never {}).boxed()),
        RuntimeCallBody::Json(bytes) => (Some("application/json"), full(bytes)),
        RuntimeCallBody::Tar(bytes) => (Some("application/x-tar"), full(bytes)),
        RuntimeCallBody::Stream(body) => (Some("application/x-tar"), body),
    };
    let mut request = Request::builder()
        .method(call.method)
        .uri(call.uri)
        .header(HOST, "localhost");
    if let Some(kind) = kind {
        request = request.header(CONTENT_TYPE, kind);
    }
    request.body(body).map_err(RuntimeCallError::disconnected)
}
