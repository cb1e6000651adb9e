//! Answers that are JSON.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::problem::Problem;

pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// A status and a body.
#[derive(Debug)]
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> Answer<T> {
    pub(crate) fn ok(body: T) -> Self {
        Self(StatusCode::OK, body)
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let body = match serde_json::to_vec(&self.1) {
            Ok(body) => body,
            Err(error) => return Problem::internal(&error).into_response(),
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.0;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        // What was true a moment ago is of no use to anybody.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
