//! Errors that clients of the simulated cloud receive.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error response. The classes are those of the OpenStack client library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{class}: {message}")]
pub struct CloudError {
    /// The HTTP status; not a part of the body.
    #[serde(skip)]
    pub status: u16,
    pub class: String,
    pub message: String,
    /// The id of a server that was created in part and has to be deleted.
    #[serde(default)]
    pub resource_id: Option<String>,
}

impl CloudError {
    pub const BAD_REQUEST: &str = "BadRequestException";
    pub const HTTP: &str = "HttpException";
    pub const CREATE: &str = "OpenStackCloudCreateException";

    fn new(status: u16, class: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            class: class.to_owned(),
            message: message.into(),
            resource_id: None,
        }
    }

    /// A name or zone in the call does not exist, or not any more.
    pub(super) fn stale(message: impl Into<String>) -> Self {
        Self::new(400, Self::BAD_REQUEST, message)
    }

    pub(super) fn quota(what: &str, requested: i64, used: i64, limit: i64) -> Self {
        let message = format!(
            "Quota exceeded for {what}: Requested {requested}, but already used {used} of {limit} {what}"
        );
        Self::new(403, Self::HTTP, message)
    }

    pub(super) fn half_created(server: &str) -> Self {
        Self {
            resource_id: Some(server.to_owned()),
            ..Self::new(500, Self::CREATE, "Error in creating the server")
        }
    }

    pub(super) fn not_found(what: &str, id: &str) -> Self {
        Self::new(404, "NotFoundException", format!("no {what} {id:?}"))
    }

    /// The request is malformed.
    pub(crate) fn malformed(reason: impl fmt::Display) -> Self {
        Self::new(400, "MalformedRequest", format!("invalid body: {reason}"))
    }

    pub(crate) fn too_large() -> Self {
        Self::new(413, "MalformedRequest", "body too large")
    }

    pub(crate) fn no_room_for_provider(provider: &str) -> Self {
        let message = format!("no cloud for provider {provider:?}: too many providers");
        Self::new(429, Self::HTTP, message)
    }

    /// A host key scan of an address that is not simulated.
    pub(crate) fn unreachable(address: &str) -> Self {
        let address: String = address.chars().take(60).collect();
        let message = format!("{address:?} is not a simulated address");
        Self::new(504, "ConnectionTimeoutException", message)
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        let method: String = method.chars().take(60).collect();
        Self::new(404, "UnknownMethod", format!("no method {method:?}"))
    }

    pub(super) fn internal(error: &serde_json::Error) -> Self {
        Self::new(500, Self::HTTP, format!("failed to encode result: {error}"))
    }

    /// Returns a randomly drawn failure.
    pub(super) fn simulated(class: &str, method: &str) -> Self {
        if class.eq_ignore_ascii_case("quota") {
            return Self::new(403, Self::HTTP, "Quota exceeded for something (simulated)");
        }
        let status = match class {
            Self::BAD_REQUEST => 400,
            "Unauthorized" => 401,
            _ => 500,
        };
        Self::new(status, class, format!("{method} failed (simulated)"))
    }
}
