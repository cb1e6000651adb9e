//! Errors of calls, each with a kind.

mod text;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use crate::service::Service;

pub(crate) use text::ServiceMessage;

/// The kind of an error. Callers act on it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The credentials or the token were rejected.
    Auth,
    /// The user may not do this.
    Forbidden,
    NotFound,
    /// The state of the resource does not allow it.
    Conflict,
    /// A quota is used up.
    Quota,
    /// The cloud has no capacity: no host, no address.
    NoCapacity,
    /// The rate of calls is too high.
    TooManyRequests,
    /// The service failed. The call may have had an effect.
    Fault,
    /// There was no response, or one of a proxy without one. The call may have had an effect.
    Unavailable,
    /// The response is invalid.
    Malformed,
    /// The request is invalid.
    Refused,
    /// The catalog does not have the service.
    NoService,
    /// The settings of the cloud are invalid.
    Setup,
}

/// A failed call.
pub struct Error(Box<ErrorDetails>);

struct ErrorDetails {
    kind: ErrorKind,
    service: Service,
    /// What was attempted, in the infinitive.
    call: Box<str>,
    status: Option<StatusCode>,
    /// The message of the service.
    message: Option<Box<str>>,
    request_id: Option<Box<str>>,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, service: Service, call: impl Into<Box<str>>) -> Self {
        Self(Box::new(ErrorDetails {
            kind,
            service,
            call: call.into(),
            status: None,
            message: None,
            request_id: None,
            retry_after: None,
            source: None,
        }))
    }

    /// Converts a response that is not a success.
    pub(crate) fn from_response(
        service: Service,
        call: &str,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Self {
        let message = ServiceMessage::read(body);
        let kind = kind_of(service, status, headers, &message);
        let mut error = Self::new(kind, service, call);
        let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.into());
        error.0.status = Some(status);
        error.0.message = message.text;
        error.0.request_id =
            text("x-openstack-request-id").or_else(|| text("x-compute-request-id"));
        error.0.retry_after = nodeyard_fetch::retry_after(headers, nodeyard_model::now().into());
        error
    }

    #[must_use]
    pub(crate) fn with_message(mut self, message: impl Into<Box<str>>) -> Self {
        self.0.message = Some(message.into());
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

    /// Returns the message of the service.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// Returns the id of the request in the log of the service.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// Returns the pause that the service asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns the cause, for an error that has the same text.
    pub fn into_source(self) -> Option<Box<dyn StdError + Send + Sync>> {
        self.0.source
    }
}

fn kind_of(
    service: Service,
    status: StatusCode,
    headers: &HeaderMap,
    message: &ServiceMessage,
) -> ErrorKind {
    if message.mentions(&["quota", "number of ports exceeded"]) && status.is_client_error() {
        return ErrorKind::Quota;
    }
    if message.mentions(&[
        "no valid host",
        "no more ip addresses",
        "ipaddressgenerationfailure",
        "externalipaddressexhausted",
        // No compute host of the zone is up.
        "availability zone is not available",
    ]) {
        return ErrorKind::NoCapacity;
    }
    match status.as_u16() {
        401 => ErrorKind::Auth,
        // Keystone is only asked for tokens: what it does not find are credentials.
        404 if service == Service::Identity => ErrorKind::Auth,
        403 => ErrorKind::Forbidden,
        404 | 410 => ErrorKind::NotFound,
        // 412: it was changed meanwhile.
        409 | 412 | 423 => ErrorKind::Conflict,
        // Older services use 413 for both a rate limit and a quota.
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
        let ErrorDetails {
            kind,
            service,
            call,
            status,
            message,
            request_id,
            ..
        } = &*self.0;
        match kind {
            ErrorKind::Unavailable if status.is_none() => {
                write!(
                    f,
                    "failed to {call}: the {service} service does not respond"
                )?;
            }
            ErrorKind::Malformed => {
                write!(
                    f,
                    "failed to {call}: invalid response from the {service} service"
                )?;
            }
            ErrorKind::NoService => {
                write!(f, "failed to {call}: the cloud has no {service} service")?;
            }
            ErrorKind::Setup => write!(f, "failed to {call}")?,
            _ => write!(f, "the {service} service refused to {call}")?,
        }
        if let Some(message) = message {
            write!(f, ": {message}")?;
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
        Error::from_response(
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
                NoCapacity,
            ),
            (
                400,
                r#"{"badRequest": {"code": 400, "message": "Invalid key_name provided."}}"#,
                Refused,
            ),
            (
                400,
                r#"{"badRequest": {"code": 400, "message": "The requested availability zone is not available"}}"#,
                NoCapacity,
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
        let login =
            Error::from_response(Service::Identity, "log in", status, &HeaderMap::new(), body);
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
