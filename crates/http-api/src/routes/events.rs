//! The stream of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Reader, Standing};
use crate::answer::Result;
use crate::app::App;
use crate::events::{Filter, Happened, Kind, Resume, body};
use crate::extract::Query;
use crate::problem::Problem;

/// What to listen to.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Only these kinds, separated by commas, such as `lease,node`.
    kind: Option<String>,
    /// Only what is about the thing with this id or name, or related to it: the nodes of a request, the builds of an
    /// image.
    about: Option<String>,
    /// As the header `Last-Event-ID`, for clients that cannot set it.
    last_event_id: Option<String>,
}

/// What the `data` of an event holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventData {
    kind: Kind,
    /// The id or name of what has changed.
    id: String,
    change: Happened,
    /// When it was noticed.
    #[schema(format = DateTime)]
    time: String,
    /// The thing as it is now, in the form in which it is listed; null if it is gone.
    #[schema(value_type = Option<Object>)]
    object: Option<serde_json::Value>,
}

/// Follow all changes
///
/// Server-sent events. Each has an `id`, an `event` that is the kind of what has changed, and `data` that is JSON as
/// [EventData](#/components/schemas/EventData) describes it. Several quick changes of one thing may be one event.
///
/// Whoever comes back with the `id` of the last event in the header `Last-Event-ID` gets what came after it. If that
/// is too long ago, or the server was started again meanwhile, the next event is `reset`: list again. A comment is sent
/// every 15 seconds. A client that does not read for 30 seconds is dropped. The stream ends when its token expires, leaves
/// the configuration or allows something else.
///
/// Where tokens have tenants, nothing is told of requests, leases, scopes and nodes without a token.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(EventQuery, ("last-event-id" = Option<String>, Header, description = "The id of the last event that was seen.")),
    responses((status = 200, description = "Events, until the client goes or its token does.", body = String, content_type = "text/event-stream")),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn follow_events(
    State(app): State<App>,
    Reader(mut caller): Reader,
    Extension(standing): Extension<Standing>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Response> {
    let mut kinds = BTreeSet::new();
    for name in query.kind.iter().flat_map(|kinds| kinds.split(',')) {
        let kind = Kind::named(name.trim()).ok_or_else(|| {
            let all = Kind::ALL.map(Kind::as_str).join(", ");
            Problem::bad_request(format!("`kind` {name:?} is not one of {all}"))
        })?;
        kinds.insert(kind);
        if kind.is_tenants() {
            // Who asks for it by name would wait in vain.
            caller = caller.inside()?;
        }
    }
    let filter = Filter {
        kinds,
        about: query.about,
        sight: caller.sight,
    };
    let last = headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or(""));
    let last = last.or(query.last_event_id.as_deref());
    let resume = match last {
        None => Resume::Now,
        Some(id) => id.parse().map_or(Resume::Lost, Resume::After),
    };
    let permit = Arc::clone(&app.streams).try_acquire_owned();
    let permit = permit.map_err(|_| Problem::unavailable("there are too many event streams"))?;
    let mut response = Response::new(body(
        app.hub.clone(),
        filter,
        resume,
        standing,
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
    // Proxies would keep the events to themselves for a while.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
