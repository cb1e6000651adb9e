//! Errors as described in RFC 9457.
//!
//! Programs compare `type`, people read `detail`. Neither contains a token, nor the text of an internal error that
//! might: those go to the log.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Right;

pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// The seconds after which a client should try again.
const RETRY_AFTER_SECONDS: u64 = 1;

/// An error (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ApiProblem {
    /// The kind of problem, a stable text.
    #[serde(rename = "type")]
    #[schema(examples("urn:nodeyard:problem:not-found"))]
    kind: String,
    /// The kind of problem in words.
    #[schema(examples("Not found"))]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, examples(404))]
    status: u16,
    /// What is wrong, and what to do about it.
    #[schema(examples("there is no request 100-0000000007"))]
    detail: String,
    /// The invalid fields of the body.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
    /// The right that is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<Right>,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// An invalid field of a body.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// The field as a JSON pointer; empty for the whole body.
    #[schema(examples("/labels/0"))]
    pub(crate) pointer: String,
    /// What is wrong with the field.
    #[schema(examples("invalid type: integer `5`, expected a string"))]
    pub(crate) detail: String,
}

impl ApiProblem {
    fn new(status: StatusCode, kind: &str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:nodeyard:problem:{kind}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            right: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            detail,
        )
    }

    /// The token is missing or unknown.
    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        let problem = Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "A token is needed",
            detail,
        );
        problem.with_header(header::WWW_AUTHENTICATE, "Bearer realm=\"nodeyard\"")
    }

    pub(crate) fn forbidden(needed: Right, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail);
        problem.right = Some(needed);
        problem
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(crate) fn method_not_allowed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Method not allowed",
            detail,
        )
    }

    /// The body was not received in time.
    pub(crate) fn too_slow(detail: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "Too slow", detail);
        problem.with_header(header::CONNECTION, "close")
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "Not now", detail)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body-too-large",
            "Body too large",
            format!("the maximum size of a body is {limit} bytes"),
        )
    }

    pub(crate) fn unsupported_media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "Unsupported media type",
            "send the body as JSON, with the header `content-type: application/json`",
        )
    }

    pub(crate) fn invalid_body(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let error = FieldError {
            pointer: pointer.into(),
            detail: detail.into(),
        };
        let detail = if error.pointer.is_empty() {
            error.detail.clone()
        } else {
            format!("{}: {}", error.pointer, error.detail)
        };
        let mut problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-body",
            "Invalid body",
            detail,
        );
        problem.errors.push(error);
        problem
    }

    pub(crate) fn too_many_requests(seconds: u64) -> Self {
        let problem = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-requests",
            "Too many requests",
            format!("the rate limit is reached; try again in {seconds} s"),
        );
        problem.with_header(header::RETRY_AFTER, &seconds.to_string())
    }

    /// A temporary failure that is not the client's fault.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Not available now",
            detail,
        );
        problem.with_header(header::RETRY_AFTER, &RETRY_AFTER_SECONDS.to_string())
    }

    /// An internal error, whose cause goes to the log.
    pub(crate) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error, "failed to handle API request");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            "internal error; see the server's log",
        )
    }

    fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        // Serialising texts and numbers cannot fail.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.extend(self.headers);
        response
    }
}

/// Maps errors of the store.
impl From<nodeyard_store::Error> for ApiProblem {
    fn from(error: nodeyard_store::Error) -> Self {
        use nodeyard_store::Error as E;
        match error {
            E::NoNode { .. } => Self::not_found("it no longer exists"),
            E::BadVersion { .. } | E::NodeExists { .. } | E::NotEmpty { .. } => {
                Self::conflict("it was changed concurrently; read it again")
            }
            E::LockTimeout(_) => Self::conflict("it is locked; try again"),
            E::InvalidPath(_) => Self::not_found("invalid name"),
            E::TooLarge { limit, .. } => Self::body_too_large(limit),
            E::ConnectionLoss => Self::unavailable(
                "the connection to the store was lost; the change may or may not have been made",
            ),
            E::SessionExpired | E::Closed => Self::unavailable("the store cannot be reached"),
            other => Self::internal(&other),
        }
    }
}
