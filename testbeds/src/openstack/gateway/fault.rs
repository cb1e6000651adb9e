//! What may happen to a call, and to which.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::Call;
use crate::openstack::api::Service;

/// What is answered to a call.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// What a service says with this status, in its own manner.
    pub fn of(service: Service, status: u16, message: &str) -> Self {
        let (kind, title) = match status {
            400 => ("badRequest", "Bad Request"),
            401 => ("unauthorized", "Unauthorized"),
            403 => ("forbidden", "Forbidden"),
            404 => ("itemNotFound", "Not Found"),
            409 => ("conflictingRequest", "Conflict"),
            413 | 429 => ("overLimit", "Over Limit"),
            503 => ("serviceUnavailable", "Service Unavailable"),
            _ => ("computeFault", "Internal Server Error"),
        };
        let body = match service {
            Service::Image if status != 401 => format!(
                "<html>\n <head>\n  <title>{status} {title}</title>\n </head>\n <body>\n  \
                 <h1>{status} {title}</h1>\n  {message}\n </body>\n</html>"
            ),
            // All services have the same doorkeeper.
            _ if status == 401 || service == Service::Identity => {
                json!({"error": {"code": status, "title": title, "message": message}}).to_string()
            }
            Service::Network => {
                let kind = title.replace(' ', "");
                json!({"NeutronError": {"type": kind, "message": message, "detail": ""}})
                    .to_string()
            }
            _ => json!({kind: {"code": status, "message": message}}).to_string(),
        };
        let content_type = match service {
            Service::Image if status != 401 => "text/html; charset=UTF-8",
            _ => "application/json",
        };
        Self {
            status,
            headers: vec![("Content-Type".to_owned(), content_type.to_owned())],
            body: body.into_bytes(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// What happens to a call.
#[derive(Clone)]
pub enum Fault {
    /// The service does not hear of it, and this is answered.
    Answer(Answer),
    /// The connection breaks before the service has heard of it.
    CutBefore,
    /// The service does it, but the connection breaks before the client has the answer.
    AnswerLost,
    /// Both connections break after so many bytes of the body. A shorter one is cut before its end.
    CutUpload(u64),
    /// The service hears of it later.
    Delay(Duration),
    /// Never answered; the service does not hear of it.
    Silence,
    /// The service does it, and its answer is changed on the way.
    Altered(Arc<dyn Fn(&mut Value) + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(answer) => write!(f, "Answer({})", answer.status),
            Self::CutBefore => f.write_str("CutBefore"),
            Self::AnswerLost => f.write_str("AnswerLost"),
            Self::CutUpload(bytes) => write!(f, "CutUpload({bytes})"),
            Self::Delay(time) => write!(f, "Delay({time:?})"),
            Self::Silence => f.write_str("Silence"),
            Self::Altered(_) => f.write_str("Altered"),
        }
    }
}

impl Fault {
    /// As the service would say it.
    pub fn status(service: Service, status: u16) -> Self {
        let message = match status {
            401 => "The request you have made requires authentication.",
            404 => "The resource could not be found.",
            409 => "There was a conflict with another request.",
            429 => "This request was rate-limited.",
            503 => "The server is currently unavailable. Please try again at a later time.",
            _ => {
                "The server has either erred or is incapable of performing the requested operation."
            }
        };
        Self::Answer(Answer::of(service, status, message))
    }

    /// The request is to be made again after some seconds.
    pub fn too_many(service: Service, seconds: u64) -> Self {
        let answer = Answer::of(service, 429, "This request was rate-limited.");
        Self::Answer(answer.with("Retry-After", seconds.to_string()))
    }

    /// A quota is used up, as each service puts it.
    pub fn over_quota(service: Service) -> Self {
        let (status, message) = match service {
            Service::Network => (409, "Quota exceeded for resources: ['port']."),
            Service::BlockStorage => (
                413,
                "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'.",
            ),
            Service::Image => (413, "Request exceeds the storage quota of the project."),
            _ => (
                403,
                "Quota exceeded for instances: Requested 1, but already used 10 of 10 instances",
            ),
        };
        let mut answer = Answer::of(service, status, message);
        if service == Service::Network {
            let body =
                json!({"NeutronError": {"type": "OverQuota", "message": message, "detail": ""}});
            answer.body = body.to_string().into_bytes();
        }
        Self::Answer(answer)
    }
}

/// Which calls a fault strikes: all, unless something is said.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    service: Option<Service>,
    method: Option<String>,
    path: Option<String>,
    skip: usize,
    times: Option<usize>,
}

impl Calls {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn of(service: Service) -> Self {
        Self {
            service: Some(service),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// The end of the path, as [`Call::path`] has it: `/servers`, `/servers/{id}`, `/file`.
    #[must_use]
    pub fn path(mut self, end: &str) -> Self {
        self.path = Some(end.to_owned());
        self
    }

    /// From that one on; the first has the number 0.
    #[must_use]
    pub fn from(mut self, number: usize) -> Self {
        self.skip = number;
        self
    }

    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Only the call with that number; the first has 0.
    #[must_use]
    pub fn nth(self, number: usize) -> Self {
        self.from(number).times(1)
    }

    pub(super) fn fit(&self, call: &Call) -> bool {
        self.service.is_none_or(|service| service == call.service)
            && self
                .method
                .as_ref()
                .is_none_or(|method| *method == call.method)
            && self
                .path
                .as_ref()
                .is_none_or(|end| call.path.ends_with(end.as_str()))
    }
}

#[derive(Debug)]
pub(super) struct Rule {
    calls: Calls,
    fault: Fault,
    seen: usize,
    effects: usize,
}

impl Rule {
    pub(super) fn new(calls: Calls, fault: Fault) -> Self {
        Self {
            calls,
            fault,
            seen: 0,
            effects: 0,
        }
    }

    /// Counts the call if it fits. `taken` says that another rule strikes it already.
    pub(super) fn strikes(&mut self, call: &Call, taken: bool) -> Option<Fault> {
        if !self.calls.fit(call) {
            return None;
        }
        let number = self.seen;
        self.seen += 1;
        let ended = |times| number >= self.calls.skip.saturating_add(times);
        if taken || number < self.calls.skip || self.calls.times.is_some_and(ended) {
            return None;
        }
        self.effects += 1;
        Some(self.fault.clone())
    }

    pub(super) fn effects(&self) -> usize {
        self.effects
    }
}

/// Decides about each call while it happens.
pub trait Toll: Send + Sync {
    /// `forward` makes the call and holds its answer back. It may block for as long as it likes.
    fn pass(&self, call: &Call, forward: &mut dyn FnMut()) -> Passage;
}

/// What the client gets.
#[derive(Debug, Clone)]
pub enum Passage {
    /// The answer of the service; the call is made if it was not yet.
    Through,
    /// A connection that breaks.
    Cut,
    Answer(Answer),
}
