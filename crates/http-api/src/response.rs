//! JSON responses.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::problem::ApiProblem;

pub(crate) type Result<T, E = ApiProblem> = std::result::Result<T, E>;

/// A response with a status and a JSON body.
#[derive(Debug)]
pub(crate) struct JsonResponse<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> JsonResponse<T> {
    pub(crate) fn ok(body: T) -> Self {
        Self(StatusCode::OK, body)
    }
}

impl<T: Serialize> IntoResponse for JsonResponse<T> {
    fn into_response(self) -> Response {
        let body = match serde_json::to_vec(&self.1) {
            Ok(body) => body,
            Err(error) => return ApiProblem::internal(&error).into_response(),
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.0;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        // Responses must not be cached, because objects change all the time.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
