//! A client of the HTTP API for commands.
//!
//! Commands make few calls, so each call opens a connection of its own, and a restarted server needs no special
//! handling.

mod endpoint;
mod lease;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use nodeyard_config::Config;
use nodeyard_http_api::LocalToken;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time;

use crate::context::CommandContext;
use crate::store_access;

pub(crate) use endpoint::HttpEndpoint;
pub(crate) use lease::{LeaseResponse, LeasedNode, PageResponse, ScopeResponse};

/// The maximum size of a response, to bound memory if another service listens on that port.
const MAX_RESPONSE_SIZE: usize = 64 << 20;
/// How long a response may take in addition to the time that the server was asked to wait.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct ApiArgs {
    /// Address of the HTTP API; without it that of the configuration, on this host
    #[arg(long, global = true, value_name = "URL", env = "NODEYARD_API")]
    api: Option<String>,
    /// File with the token; without it NODEYARD_TOKEN, or the token of this host in the state directory
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates of the authorities to trust with https; without it those of the system
    #[arg(long, global = true, value_name = "FILE", env = "NODEYARD_API_CA")]
    api_ca: Option<PathBuf>,
    /// Where the token of this host is, whatever the configuration says
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl ApiArgs {
    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir.clone()
    }
}

/// Calls the API. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct ApiClient {
    endpoint: HttpEndpoint,
    token: Option<HeaderValue>,
    /// Where the address comes from, if it was not given on the command line.
    note: String,
}

/// An error response.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    detail: String,
}

/// The body of an error response.
#[derive(Deserialize)]
struct ProblemBody {
    detail: String,
    #[serde(default)]
    errors: Vec<ProblemField>,
}

#[derive(Deserialize)]
struct ProblemField {
    pointer: String,
    detail: String,
}

impl ApiClient {
    pub(crate) fn new(args: &ApiArgs, context: &CommandContext) -> anyhow::Result<Self> {
        let config = match (&args.api, &args.state_dir) {
            (Some(_), Some(_)) => None,
            _ => context.load()?,
        };
        let config = config.as_deref();
        let url = match &args.api {
            Some(url) => url.clone(),
            None => configured(config),
        };
        let token = token(args, config)?;
        let endpoint = HttpEndpoint::new(&url, args.api_ca.as_deref())
            .with_context(|| format!("invalid API URL {url:?}"))?;
        let note = match args.api {
            Some(_) => String::new(),
            None => format!(" ({})", context.config_note()),
        };
        let token = token
            .map(|token| HeaderValue::from_str(&format!("Bearer {token}")))
            .transpose()
            .context("the token contains invalid characters")?
            .map(|mut value| {
                value.set_sensitive(true);
                value
            });
        Ok(Self {
            endpoint,
            token,
            note,
        })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None, None, RESPONSE_TIMEOUT)
            .await
    }

    /// Sends a GET request with a `wait`, to which the server may respond late.
    pub(crate) async fn wait<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> anyhow::Result<T> {
        let path = format!("{path}?wait={}", timeout.as_secs());
        let timeout = RESPONSE_TIMEOUT + timeout;
        self.call(Method::GET, &path, None, None, timeout).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> anyhow::Result<T> {
        self.call(Method::POST, path, Some(body), key, RESPONSE_TIMEOUT)
            .await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::DELETE, path, None, None, RESPONSE_TIMEOUT)
            .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
        timeout: Duration,
    ) -> anyhow::Result<T> {
        let unreachable = || {
            let Self { endpoint, note, .. } = self;
            format!("the API at {endpoint} does not respond; is `nodeyard up` running there?{note}")
        };
        let mut request = self
            .endpoint
            .request(method, &format!("/api/v1{path}"))
            .header(ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes))?;
        let response = time::timeout(timeout, self.endpoint.exchange(request, MAX_RESPONSE_SIZE))
            .await
            .with_context(unreachable)?
            .with_context(unreachable)?;
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            return Err(api_error(status, &body).into());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("failed to parse the API's response to {path}"))
    }
}

fn api_error(status: StatusCode, body: &[u8]) -> ApiError {
    let detail = match serde_json::from_slice::<ProblemBody>(body) {
        Ok(problem) => {
            let errors = problem.errors.iter();
            let errors = errors.map(|error| format!("; {}: {}", error.pointer, error.detail));
            format!("{}{}", problem.detail, errors.collect::<String>())
        }
        Err(_) => format!("the API responded with {status}"),
    };
    ApiError { status, detail }
}

/// Returns the status of an error response, if the error is one.
pub(crate) fn api_error_status(error: &anyhow::Error) -> Option<StatusCode> {
    error
        .downcast_ref()
        .map(|api_error: &ApiError| api_error.status)
}

/// Returns the URL of the API on this host.
fn configured(config: Option<&Config>) -> String {
    let api = config.map(|config| config.api.clone()).unwrap_or_default();
    let scheme = if api.tls.is_some() { "https" } else { "http" };
    let host = match api.listen_address.as_str() {
        "" | "0.0.0.0" | "*" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        address if address.contains(':') => format!("[{}]", address.trim_matches(['[', ']'])),
        address => address.to_owned(),
    };
    format!("{scheme}://{host}:{}", api.port.0)
}

fn token(args: &ApiArgs, config: Option<&Config>) -> anyhow::Result<Option<String>> {
    if let Some(path) = &args.token_file {
        let text = std::fs::read_to_string(path);
        let text =
            text.with_context(|| format!("failed to read the token from {}", path.display()))?;
        return Ok(Some(text.trim().to_owned()));
    }
    if let Ok(token) = std::env::var("NODEYARD_TOKEN") {
        return Ok(Some(token.trim().to_owned()));
    }
    // The local token must not be sent to other hosts.
    if args.api.is_some() && args.state_dir.is_none() {
        return Ok(None);
    }
    let directory = match &args.state_dir {
        Some(directory) => directory.clone(),
        None => store_access::state_dir(config)?,
    };
    Ok(LocalToken::find(&directory).map(|token| token.reveal().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_responses_become_the_servers_message() {
        let body = br#"{"type": "x", "detail": "the body is wrong", "errors": [{"pointer": "/labels", "detail": "empty"}]}"#;
        let api_error = api_error(StatusCode::BAD_REQUEST, body);
        assert_eq!(api_error.to_string(), "the body is wrong; /labels: empty");
        let strange = super::api_error(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(
            strange.to_string(),
            "the API responded with 502 Bad Gateway"
        );
    }
}
