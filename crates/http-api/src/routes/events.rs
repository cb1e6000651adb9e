//! The stream of change events.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{ReadAccess, RevocationWatch};
use crate::app::ApiState;
use crate::events::{ChangeType, EventFilter, ObjectKind, Resume, body};
use crate::extract::QueryParams;
use crate::problem::ApiProblem;
use crate::response::Result;

/// Which events to stream.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Only these kinds, separated by commas, such as `lease,node`.
    kind: Option<String>,
    /// Only events about the object with this id or name, or related to it: the nodes of a request, the builds of an
    /// image.
    about: Option<String>,
    /// The same as the header `Last-Event-ID`, for clients that cannot set it.
    last_event_id: Option<String>,
}

/// The `data` of an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventData {
    kind: ObjectKind,
    /// The id or name of the object.
    id: String,
    change: ChangeType,
    /// When the server noticed the change.
    #[schema(format = DateTime)]
    time: String,
    /// The object in its current state, as in lists; null if it was deleted.
    #[schema(value_type = Option<Object>)]
    object: Option<serde_json::Value>,
}

/// Stream change events
///
/// Server-sent events. Each has an `id`, an `event` that is the kind of the object, and `data` in JSON as described by
/// [EventData](#/components/schemas/EventData). Several quick changes of one object may become one event.
///
/// A client that reconnects with the `id` of its last event in the header `Last-Event-ID` gets the events after it. If
/// these are no longer known, or the server was restarted meanwhile, the next event is `reset`: list the objects again.
/// A comment is sent every 15 seconds. A client that does not read for 30 seconds is disconnected. The stream ends when
/// its token expires, is removed from the configuration or gets other rights.
///
/// Where tokens have tenants, a client without a token gets no events about requests, leases, scopes and nodes.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(EventQuery, ("last-event-id" = Option<String>, Header, description = "The id of the last event that the client has received.")),
    responses((status = 200, description = "Events, until the client disconnects or its token becomes invalid.", body = String, content_type = "text/event-stream")),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn follow_events(
    State(app): State<ApiState>,
    ReadAccess(mut caller): ReadAccess,
    Extension(revocation): Extension<RevocationWatch>,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventQuery>,
) -> Result<Response> {
    let mut kinds = BTreeSet::new();
    for name in query.kind.iter().flat_map(|kinds| kinds.split(',')) {
        let kind = ObjectKind::from_name(name.trim()).ok_or_else(|| {
            let all = ObjectKind::ALL.map(ObjectKind::as_str).join(", ");
            ApiProblem::bad_request(format!("`kind` {name:?} is unknown; expected one of {all}"))
        })?;
        kinds.insert(kind);
        if kind.belongs_to_tenants() {
            // Otherwise the client would wait for events that never come.
            caller = caller.require_tenant_data()?;
        }
    }
    let filter = EventFilter {
        kinds,
        about: query.about,
        visibility: caller.visibility,
    };
    let last = headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or(""));
    let last = last.or(query.last_event_id.as_deref());
    let resume = match last {
        None => Resume::Now,
        Some(id) => id.parse().map_or(Resume::Unknown, Resume::After),
    };
    let permit = Arc::clone(&app.streams).try_acquire_owned();
    let permit = permit.map_err(|_| ApiProblem::unavailable("too many event streams"))?;
    let mut response = Response::new(body(
        app.hub.clone(),
        filter,
        resume,
        revocation,
        permit,
        app.shutdown.clone(),
    ));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Proxies would buffer the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
