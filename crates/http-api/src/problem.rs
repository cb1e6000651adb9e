//! Errors as RFC 9457 describes them: one shape for everything that goes wrong.
//!
//! `type` is what programs compare, `detail` is what people read. Neither ever holds a token, nor the text of an
//! error from below that might: those go to the log.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Right;

pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// Seconds after which something that is busy is worth another try.
const SOON: u64 = 1;

/// What went wrong (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// What kind of problem it is; the same text for the same kind, for ever.
    #[serde(rename = "type")]
    #[schema(examples("urn:nodeyard:problem:not-found"))]
    kind: String,
    /// The kind in words.
    #[schema(examples("Not found"))]
    title: &'static str,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599, examples(404))]
    status: u16,
    /// What is wrong this time, and what to do about it.
    #[schema(examples("there is no request 100-0000000007"))]
    detail: String,
    /// The fields of the body that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
    /// The right that was missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<Right>,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A field of a body that is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// Where it is, as a JSON pointer; empty for the body as a whole.
    #[schema(examples("/labels/0"))]
    pub(crate) pointer: String,
    /// What is wrong with it.
    #[schema(examples("invalid type: integer `5`, expected a string"))]
    pub(crate) detail: String,
}

impl Problem {
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

    /// Nobody we know, or nobody at all.
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

    /// The body did not come in time.
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
            format!("a body may have {limit} bytes"),
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

    /// It is not the client's fault, and will pass.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Not available now",
            detail,
        );
        problem.with_header(header::RETRY_AFTER, &SOON.to_string())
    }

    /// It is nobody's fault but ours; the cause is in the log.
    pub(crate) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error, "a request to the API failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            "the reason is in the log of the server",
        )
    }

    fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // Texts and numbers cannot fail to be written.
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

/// What the store says when it cannot.
impl From<nodeyard_store::Error> for Problem {
    fn from(error: nodeyard_store::Error) -> Self {
        use nodeyard_store::Error as E;
        match error {
            E::NoNode { .. } => Self::not_found("it is gone"),
            E::BadVersion { .. } | E::NodeExists { .. } | E::NotEmpty { .. } => {
                Self::conflict("somebody else has changed it meanwhile; look again")
            }
            E::LockTimeout(_) => Self::conflict("somebody else is at work on it; try again"),
            E::InvalidPath(_) => Self::not_found("nothing can have this name"),
            E::TooLarge { limit, .. } => Self::body_too_large(limit),
            E::ConnectionLoss => Self::unavailable(
                "the connection to the store was lost; the change may or may not have been made",
            ),
            E::SessionExpired | E::Closed => {
                Self::unavailable("the store cannot be reached at the moment")
            }
            other => Self::internal(&other),
        }
    }
}
