//! Serves simulated clouds over HTTP: `POST /<provider>/<method>` with a JSON object.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cloud::{CloudError, Outcome, Reply};
use crate::world::World;

const MAX_BODY: usize = 1 << 20;

#[derive(Debug, Clone)]
struct Shared {
    world: Arc<World>,
    /// Closed when the server shuts down, which ends the calls that hang.
    shutdown_begun: watch::Receiver<()>,
}

/// Serves `world` until `shutdown` returns.
pub async fn serve(
    listener: TcpListener,
    world: Arc<World>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (alive, shutdown_begun) = watch::channel(());
    let shared = Shared {
        world,
        shutdown_begun,
    };
    let app = Router::new()
        .route("/nodescan", post(nodescan))
        .route("/{provider}/{method}", post(call))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared);
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            shutdown.await;
            drop(alive);
        })
        .await
}

async fn call(
    State(shared): State<Shared>,
    Path((provider, method)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return refuse(&invalid_body(&rejection)),
    };
    match shared.world.call(&provider, &method, &body) {
        Outcome::Answer(Ok(reply)) => {
            shared.delay(&reply).await;
            answer(&reply.result)
        }
        Outcome::Answer(Err(error)) => refuse(&error),
        Outcome::Lost => break_connection(),
        Outcome::Hang => {
            shared.ended().await;
            break_connection()
        }
    }
}

impl Shared {
    async fn delay(&self, reply: &Reply) {
        if let Some(time) = reply.not_before {
            tokio::select! {
                () = tokio::time::sleep(time.since(self.world.clock().now())) => {}
                () = self.ended() => {}
            }
        }
    }

    async fn ended(&self) {
        let mut shutdown_begun = self.shutdown_begun.clone();
        while shutdown_begun.changed().await.is_ok() {}
    }
}

#[derive(Debug, Deserialize)]
struct Nodescan {
    ip: String,
    #[serde(default, rename = "port")]
    _port: Option<u16>,
    #[serde(default)]
    gather_hostkeys: bool,
}

/// Returns the host keys of a simulated machine. All of them are reachable.
async fn nodescan(body: Result<Bytes, BytesRejection>) -> Response {
    let scan: Result<Nodescan, _> = match &body {
        Ok(body) => serde_json::from_slice(body).map_err(|error| CloudError::malformed(&error)),
        Err(rejection) => Err(invalid_body(rejection)),
    };
    match scan {
        Ok(scan) if !scan.ip.contains("fake") => refuse(&CloudError::unreachable(&scan.ip)),
        Ok(scan) if scan.gather_hostkeys => answer(&["ssh-rsa FAKEKEY"]),
        Ok(_) => answer(&[(); 0]),
        Err(error) => refuse(&error),
    }
}

fn invalid_body(rejection: &BytesRejection) -> CloudError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        CloudError::too_large()
    } else {
        CloudError::malformed(rejection.body_text())
    }
}

fn answer(result: &(impl Serialize + ?Sized)) -> Response {
    #[derive(Serialize)]
    struct Answer<'a, T: ?Sized> {
        result: &'a T,
    }
    json(StatusCode::OK, &Answer { result })
}

fn refuse(error: &CloudError) -> Response {
    #[derive(Serialize)]
    struct Refusal<'a> {
        error: &'a CloudError,
    }
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, &Refusal { error })
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Breaks the connection in the middle of a response.
fn break_connection() -> Response {
    let broken =
        stream::once(async { Err::<Bytes, _>(io::Error::from(io::ErrorKind::BrokenPipe)) });
    Body::from_stream(broken).into_response()
}
