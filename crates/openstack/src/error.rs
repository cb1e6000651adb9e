//! What a cloud said no with, or why it said nothing.

mod text;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use crate::service::Service;

pub(crate) use text::Said;

/// What to do about an error depends on this, and on nothing else of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The cloud does not know us, or not any more.
    Auth,
    /// It knows us and does not let us.
    Forbidden,
    NotFound,
    /// It cannot be done to the thing in its present state.
    Conflict,
    /// A quota is used up.
    Quota,
    /// The cloud itself has no room: no host, no address.
    NoRoom,
    /// We ask too often.
    TooManyRequests,
    /// The service failed at it. Whether something was done is not known.
    Fault,
    /// There was no answer, or only one that there is none. Whether something was done is not known.
    Unavailable,
    /// There was an answer that makes no sense.
    Malformed,
    /// The request itself is wrong.
    Refused,
    /// The catalog does not have the service.
    NoService,
    /// What we have been told about the cloud is of no use.
    Setup,
}

/// Why a call came to nothing.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    service: Service,
    /// What was to be done, in the infinitive.
    call: Box<str>,
    status: Option<StatusCode>,
    /// In the words of the service.
    said: Option<Box<str>>,
    request_id: Option<Box<str>>,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, service: Service, call: impl Into<Box<str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            service,
            call: call.into(),
            status: None,
            said: None,
            request_id: None,
            retry_after: None,
            source: None,
        }))
    }

    /// What an answer that is no success says.
    pub(crate) fn answered(
        service: Service,
        call: &str,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Self {
        let said = Said::read(body);
        let kind = kind_of(service, status, headers, &said);
        let mut error = Self::new(kind, service, call);
        let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.into());
        error.0.status = Some(status);
        error.0.said = said.text;
        error.0.request_id =
            text("x-openstack-request-id").or_else(|| text("x-compute-request-id"));
        error.0.retry_after = nodeyard_fetch::retry_after(headers, nodeyard_model::now().into());
        error
    }

    #[must_use]
    pub fn saying(mut self, said: impl Into<Box<str>>) -> Self {
        self.0.said = Some(said.into());
        self
    }

    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    pub fn service(&self) -> Service {
        self.0.service
    }

    pub fn status(&self) -> Option<StatusCode> {
        self.0.status
    }

    /// The words of the service.
    pub fn said(&self) -> Option<&str> {
        self.0.said.as_deref()
    }

    /// How the service's own log calls the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// How long the service wants us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// What is below it, for whoever has said the text already.
    pub fn into_source(self) -> Option<Box<dyn StdError + Send + Sync>> {
        self.0.source
    }
}

fn kind_of(service: Service, status: StatusCode, headers: &HeaderMap, said: &Said) -> ErrorKind {
    if said.mentions(&["quota", "number of ports exceeded"]) && status.is_client_error() {
        return ErrorKind::Quota;
    }
    if said.mentions(&[
        "no valid host",
        "no more ip addresses",
        "ipaddressgenerationfailure",
        "externalipaddressexhausted",
    ]) {
        return ErrorKind::NoRoom;
    }
    match status.as_u16() {
        401 => ErrorKind::Auth,
        // What Keystone does not find is what one logs in with: nothing else is asked of it.
        404 if service == Service::Identity => ErrorKind::Auth,
        403 => ErrorKind::Forbidden,
        404 | 410 => ErrorKind::NotFound,
        // 412: somebody else has changed it meanwhile.
        409 | 412 | 423 => ErrorKind::Conflict,
        // Before 429 there was this, for too many requests as well as for too much.
        413 if !headers.contains_key("retry-after") => ErrorKind::Quota,
        413 | 429 => ErrorKind::TooManyRequests,
        408 | 502..=504 => ErrorKind::Unavailable,
        400..=499 => ErrorKind::Refused,
        500..=599 => ErrorKind::Fault,
        _ => ErrorKind::Malformed,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind,
            service,
            call,
            status,
            said,
            request_id,
            ..
        } = &*self.0;
        match kind {
            ErrorKind::Unavailable if status.is_none() => {
                write!(
                    f,
                    "the {service} service does not answer when asked to {call}"
                )?;
            }
            ErrorKind::Malformed => {
                write!(
                    f,
                    "the {service} service answers in a way that is not known here when asked to {call}"
                )?;
            }
            ErrorKind::NoService => {
                write!(f, "cannot {call}: the cloud has no {service} service")?;
            }
            ErrorKind::Setup => write!(f, "cannot {call}")?,
            _ => write!(f, "the {service} service refused to {call}")?,
        }
        if let Some(said) = said {
            write!(f, ": {said}")?;
        }
        match (status, request_id) {
            (Some(status), Some(id)) => write!(f, " (status {}, {id})", status.as_u16())?,
            (Some(status), None) => write!(f, " (status {})", status.as_u16())?,
            (None, _) => {}
        }
        if *kind == ErrorKind::Auth {
            f.write_str("; check the credentials and the auth_url of this cloud in clouds.yaml")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self}", self.0.kind)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source:?}")?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.0.source.as_deref()?;
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: u16, headers: &[(&str, &str)], body: &str) -> Error {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: reqwest::header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        Error::answered(
            Service::Compute,
            "make a server",
            status,
            &map,
            body.as_bytes(),
        )
    }

    #[test]
    fn answers_of_the_services_have_kinds() {
        use ErrorKind::*;
        for (status, body, kind) in [
            (
                401,
                r#"{"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}"#,
                Auth,
            ),
            (
                403,
                r#"{"forbidden": {"code": 403, "message": "Quota exceeded for cores: Requested 4, but already used 20 of 20 cores"}}"#,
                Quota,
            ),
            (
                403,
                r#"{"forbidden": {"code": 403, "message": "Policy doesn't allow os_compute_api:servers:create to be performed."}}"#,
                Forbidden,
            ),
            (
                403,
                r#"{"forbidden": {"code": 403, "message": "Maximum number of ports exceeded"}}"#,
                Quota,
            ),
            (
                404,
                r#"{"itemNotFound": {"code": 404, "message": "Instance x could not be found."}}"#,
                NotFound,
            ),
            (
                409,
                r#"{"conflictingRequest": {"code": 409, "message": "Cannot 'x' while it is in task_state deleting"}}"#,
                Conflict,
            ),
            (
                409,
                r#"{"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['floatingip'].", "detail": ""}}"#,
                Quota,
            ),
            (
                409,
                r#"{"NeutronError": {"type": "IpAddressGenerationFailure", "message": "No more IP addresses available on network x.", "detail": ""}}"#,
                NoRoom,
            ),
            (
                400,
                r#"{"badRequest": {"code": 400, "message": "Invalid key_name provided."}}"#,
                Refused,
            ),
            (
                413,
                r#"{"overLimit": {"code": 413, "message": "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed gigabytes quota."}}"#,
                Quota,
            ),
            (429, "", TooManyRequests),
            (
                500,
                r#"{"computeFault": {"code": 500, "message": "Unexpected API Error."}}"#,
                Fault,
            ),
            (
                503,
                "<html><body><h1>503 Service Unavailable</h1>No server is available</body></html>",
                Unavailable,
            ),
            (300, r#"{"versions": []}"#, Malformed),
        ] {
            assert_eq!(error(status, &[], body).kind(), kind, "{status} {body}");
        }
        let body =
            br#"{"error": {"code": 404, "message": "Could not find Application Credential: x."}}"#;
        let status = StatusCode::NOT_FOUND;
        let login = Error::answered(Service::Identity, "log in", status, &HeaderMap::new(), body);
        assert_eq!(login.kind(), Auth);
        let slow = error(413, &[("retry-after", "7")], "");
        assert_eq!(slow.kind(), TooManyRequests);
        assert_eq!(slow.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_text_has_the_service_the_call_the_words_and_the_request() {
        let body = r#"{"forbidden": {"code": 403, "message": "Quota exceeded for cores"}}"#;
        let error = error(403, &[("x-openstack-request-id", "req-1")], body);
        assert_eq!(
            error.to_string(),
            "the compute service refused to make a server: Quota exceeded for cores (status 403, req-1)"
        );
    }
}
