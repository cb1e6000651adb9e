//! What handlers get out of a request: bodies, parameters and parts of paths, or the problem with them.

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

use crate::problem::Problem;

/// No body that makes sense is nearly as long.
pub(crate) const BODY_BYTES: usize = 64 * 1024;

/// For all of a body to come.
const BODY_PATIENCE: Duration = Duration::from_secs(20);

/// A JSON body. An absent one is `T`'s default where `T` has nothing that must be said.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::unsupported_media_type());
        }
        parse(&read(request).await?).map(Self)
    }
}

/// A JSON body that may be left out, and its media type with it.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let typed = request.headers().contains_key(header::CONTENT_TYPE);
        let is_json = is_json(request.headers());
        let body = read(request).await?;
        if matches!(body.trim_ascii(), b"" | b"null") {
            return Ok(Self(T::default()));
        }
        if typed && !is_json {
            return Err(Problem::unsupported_media_type());
        }
        parse(&body).map(Self)
    }
}

async fn read(request: Request) -> Result<Bytes, Problem> {
    let body = Limited::new(request.into_body(), BODY_BYTES).collect();
    match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::body_too_large(BODY_BYTES))
        }
        Ok(Err(_)) => Err(Problem::bad_request("the body ended before its time")),
        Err(_) => Err(Problem::too_slow(format!(
            "the body did not come within {} s",
            BODY_PATIENCE.as_secs()
        ))),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // A list of the values of its fields would be as good to serde.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => Problem::invalid_body("", "expected an object"),
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

fn wrong(pointer: &str, error: &serde_json::Error) -> Problem {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data => Problem::invalid_body(pointer, bare(error)),
        _ => Problem::bad_request(format!("the body is not JSON: {error}")),
    }
}

/// Without the line and column: the pointer says where it is.
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

/// Parameters after the question mark. One that is not known is an error: a misspelt filter would show
/// everything.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let axum::extract::Query(query) = query.map_err(|error| {
            let text = error.body_text();
            let text = text
                .strip_prefix("Failed to deserialize query string: ")
                .unwrap_or(&text);
            Problem::bad_request(format!("the parameters of the address are wrong: {text}"))
        })?;
        Ok(Self(query))
    }
}

/// What stands at the places of a path. Something that cannot be an id is the id of nothing.
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let path: Result<Path<T>, PathRejection> = parts.extract().await;
        match path {
            Ok(Path(names)) => Ok(Self(names)),
            Err(error) => Err(Problem::not_found(error.body_text())),
        }
    }
}

/// The field at `pointer` is to be a name or a remark.
pub(crate) fn check_plain(pointer: &str, text: &str) -> Result<(), Problem> {
    if is_short(text) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let why = format!("it must have 1 to {MAX_TEXT} characters, none of them a control character");
    Err(Problem::invalid_body(pointer, why))
}

/// Whether a text has the length of a name.
pub(crate) fn is_short(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.chars().count())
}

/// Makes what a client sends twice happen once.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyKey(pub(crate) Option<String>);

/// Long enough for every kind of id.
const KEY_BYTES: usize = 128;

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
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
            None => Err(Problem::bad_request(format!(
                "an idempotency-key is one text of 1 to {KEY_BYTES} visible ASCII characters"
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
    fn a_wrong_field_is_pointed_at() {
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
    fn what_is_not_json_is_no_body() {
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
