//! Lets the kit strike at each call.

use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_driver::ErrorClass;
use nodeyard_driver::kit::{Faults, Injected};
use nodeyard_openstack::{Request, Response, StatusCode, Transport, TransportError};
use serde_json::json;

#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) faults: Faults,
    pub(crate) cloud: Arc<dyn Transport>,
}

#[async_trait]
impl Transport for Faulty {
    async fn send(&self, request: Request) -> Result<Response, TransportError> {
        let name = format!("{request:?}");
        match self.faults.call(&name, self.cloud.send(request)).await {
            Ok(answer) => answer,
            Err(Injected::Lost) => Err(TransportError::new("the connection broke", false)),
            Err(Injected::Refused(class)) => Ok(say(class)),
        }
    }
}

/// How OpenStack tells an error of a class.
fn say(class: ErrorClass) -> Response {
    let (status, kind, message) = match class {
        ErrorClass::Retry => (409, "conflictingRequest", "Try again."),
        ErrorClass::Failed => (500, "computeFault", "Unexpected API Error."),
        ErrorClass::Quota => (
            403,
            "forbidden",
            "Quota exceeded for cores: Requested 1, but already used 20 of 20 cores",
        ),
        ErrorClass::Capacity => (
            400,
            "badRequest",
            "No valid host was found. There are not enough hosts available.",
        ),
        ErrorClass::Permanent => (400, "badRequest", "Invalid input."),
        ErrorClass::Credentials => (
            403,
            "forbidden",
            "Policy doesn't allow this to be performed.",
        ),
    };
    Response {
        status: StatusCode::from_u16(status).unwrap(),
        headers: Default::default(),
        body: json!({kind: {"code": status, "message": message}})
            .to_string()
            .into(),
    }
}
