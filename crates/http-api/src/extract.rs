//! Extractors: request bodies, query parameters and path parameters, or the problem with them.

use std::time::Duration;

use axum::RequestPartsExt as _;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use nodeyard_lease::MAX_TEXT;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_path_to_error::Segment;

use crate::problem::ApiProblem;

/// The maximum size of a body.
pub(crate) const BODY_BYTES: usize = 64 * 1024;

/// The timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// A JSON body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiProblem> {
        if !is_json(request.headers()) {
            return Err(ApiProblem::unsupported_media_type());
        }
        parse(&read(request).await?).map(Self)
    }
}

/// A JSON body that may be missing, with its media type; then it is the default.
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiProblem> {
        let typed = request.headers().contains_key(header::CONTENT_TYPE);
        let is_json = is_json(request.headers());
        let body = read(request).await?;
        if matches!(body.trim_ascii(), b"" | b"null") {
            return Ok(Self(T::default()));
        }
        if typed && !is_json {
            return Err(ApiProblem::unsupported_media_type());
        }
        parse(&body).map(Self)
    }
}

async fn read(request: Request) -> Result<Bytes, ApiProblem> {
    let body = Limited::new(request.into_body(), BODY_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ApiProblem::body_too_large(BODY_BYTES))
        }
        Ok(Err(_)) => Err(ApiProblem::bad_request("the body is incomplete")),
        Err(_) => Err(ApiProblem::too_slow(format!(
            "the body was not received within {} s",
            BODY_TIMEOUT.as_secs()
        ))),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiProblem> {
    // serde would also accept an array of the field values.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => ApiProblem::invalid_body("", "expected an object"),
            Err(error) => wrong("", &error),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let pointer = pointer(error.path());
        wrong(&pointer, error.inner())
    })?;
    deserializer.end().map_err(|error| wrong("", &error))?;
    Ok(value)
}

fn wrong(pointer: &str, error: &serde_json::Error) -> ApiProblem {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data => ApiProblem::invalid_body(pointer, bare(error)),
        _ => ApiProblem::bad_request(format!("the body is not JSON: {error}")),
    }
}

/// Returns the message without line and column, because the pointer shows where the error is.
fn bare(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                let key = key.replace('~', "~0").replace('/', "~1");
                pointer.push('/');
                pointer.push_str(&key);
            }
            Segment::Unknown => {}
        }
    }
    pointer
}

/// Query parameters. Unknown ones are errors, because a misspelt filter would match everything.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let axum::extract::Query(query) = query.map_err(|error| {
            let text = error.body_text();
            let text = text
                .strip_prefix("Failed to deserialize query string: ")
                .unwrap_or(&text);
            ApiProblem::bad_request(format!("invalid query parameters: {text}"))
        })?;
        Ok(Self(query))
    }
}

/// Path parameters. Values that are not valid ids are reported as not found.
pub(crate) struct PathParams<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let path: Result<Path<T>, PathRejection> = parts.extract().await;
        match path {
            Ok(Path(names)) => Ok(Self(names)),
            Err(error) => Err(ApiProblem::not_found(error.body_text())),
        }
    }
}

/// Checks a name or comment in the field at `pointer`.
pub(crate) fn check_short_text(pointer: &str, text: &str) -> Result<(), ApiProblem> {
    if has_name_length(text) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let text = format!("it must have 1 to {MAX_TEXT} characters, none of them a control character");
    Err(ApiProblem::invalid_body(pointer, text))
}

/// Returns whether a text has the length of a name.
pub(crate) fn has_name_length(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.chars().count())
}

/// The key that makes repeated requests take effect only once.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

/// The maximum length of a key.
const KEY_BYTES: usize = 128;

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let mut keys = parts.headers.get_all("idempotency-key").iter();
        let Some(key) = keys.next() else {
            return Ok(Self(None));
        };
        let key = key.to_str().ok().filter(|key| {
            let valid = (1..=KEY_BYTES).contains(&key.len());
            valid && key.bytes().all(|b| b.is_ascii_graphic()) && keys.next().is_none()
        });
        match key {
            Some(key) => Ok(Self(Some(key.to_owned()))),
            None => Err(ApiProblem::bad_request(format!(
                "`idempotency-key` must be a single value of 1 to {KEY_BYTES} visible ASCII characters"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Outer {
        labels: Vec<String>,
        #[serde(default)]
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        seconds: u32,
    }

    fn problem(body: &str) -> serde_json::Value {
        let problem = parse::<Outer>(body.as_bytes()).unwrap_err();
        serde_json::to_value(problem).unwrap()
    }

    #[test]
    fn an_invalid_field_is_named() {
        for (body, status, pointer, detail) in [
            (
                r#"{"labels": ["a", 5]}"#,
                422,
                "/labels/1",
                "expected a string",
            ),
            (
                r#"{"labels": [], "inner": {"seconds": -1}}"#,
                422,
                "/inner/seconds",
                "expected u32",
            ),
            (
                r#"{"labels": [], "inner": {"hours": 1}}"#,
                422,
                "/inner/hours",
                "unknown field `hours`",
            ),
            (
                r#"{"lables": []}"#,
                422,
                "/lables",
                "unknown field `lables`",
            ),
            ("{}", 422, "", "missing field `labels`"),
            ("[[]]", 422, "", "expected an object"),
            ("5", 422, "", "expected an object"),
        ] {
            let found = problem(body);
            assert_eq!(found["status"], json!(status), "{body}: {found}");
            let error = &found["errors"][0];
            assert_eq!(error["pointer"], json!(pointer), "{body}: {found}");
            let text = error["detail"].as_str().unwrap();
            assert!(text.contains(detail), "{body}: {text}");
            assert!(!text.contains("line"), "{body}: {text}");
        }
    }

    #[test]
    fn bodies_that_are_not_json_are_rejected() {
        for body in [
            "",
            "{",
            "{\"labels\": []}}",
            "{\"labels\": []} x",
            "\u{0}",
            "{'a': 1}",
        ] {
            assert_eq!(problem(body)["status"], json!(400), "{body}");
        }
    }
}
