//! Asking for nodes, which gives a lease.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nodeyard_lease as lease;
use nodeyard_lease::LeaseStatus;
use serde::Deserialize;
use utoipa::ToSchema;

use super::leases::Lease;
use super::refusal::refused;
use crate::access::Requestor;
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::extract::{IdempotencyKey, Json};
use crate::problem::Problem;
use crate::schema;
use crate::whole::whole;

/// Either way.
const MOST_PRIORITY: u64 = 1_000_000;

/// What to ask for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"labels": ["debian"], "duration": 3600})))]
pub(crate) struct NewRequest {
    /// What the nodes must be, one for each, in this order.
    #[schema(value_type = Vec<schema::LabelName>, min_items = 1, max_items = 100)]
    labels: Vec<String>,
    /// For how many seconds the nodes are kept unless the lease is renewed. A request that waits is kept as long.
    #[schema(minimum = 1, maximum = 2_592_000)]
    #[serde(default = "an_hour", deserialize_with = "whole")]
    duration: u64,
    /// Whose request it is; only for tokens that have no tenant of their own.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelName>)]
    tenant: Option<String>,
    /// The only provider that will do.
    #[serde(default)]
    #[schema(value_type = Option<schema::PathText>)]
    provider: Option<String>,
    #[serde(default)]
    #[schema(inline)]
    priority: Priority,
    /// Lower is sooner, among requests of one priority.
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0, minimum = -1_000_000, maximum = 1_000_000)]
    relative_priority: i64,
    /// The scope that owns it; made if there is none.
    #[serde(default)]
    #[schema(value_type = Option<schema::ScopeName>)]
    scope: Option<String>,
    #[serde(default)]
    #[schema(inline)]
    affinity: Affinity,
}

fn an_hour() -> u64 {
    3600
}

/// Which requests are served first.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

/// What to do where the provider of a scope's first nodes cannot serve the request.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Affinity {
    /// Any other provider will do.
    #[default]
    Prefer,
    /// The request fails.
    Strict,
}

impl NewRequest {
    fn ask(self) -> Result<lease::LeaseSpec> {
        let labels = self.labels.iter().map(|label| label.as_str().into());
        let mut ask = lease::LeaseSpec::new(labels.collect(), Duration::from_secs(self.duration));
        ask.tenant = self.tenant.map(|tenant| tenant.as_str().into());
        ask.provider = self
            .provider
            .map(|provider| provider.parse())
            .transpose()
            .map_err(|error: nodeyard_model::InvalidName| {
                Problem::invalid_body("/provider", error.to_string())
            })?;
        ask.priority = match self.priority {
            Priority::High => lease::LeasePriority::High,
            Priority::Normal => lease::LeasePriority::Normal,
            Priority::Low => lease::LeasePriority::Low,
        };
        if self.relative_priority.unsigned_abs() > MOST_PRIORITY {
            let text = format!("it must be from -{MOST_PRIORITY} to {MOST_PRIORITY}");
            return Err(Problem::invalid_body("/relative_priority", text));
        }
        ask.relative_priority = self.relative_priority;
        ask.scope = self
            .scope
            .map(|scope| scope.parse())
            .transpose()
            .map_err(refused)?;
        ask.affinity = match self.affinity {
            Affinity::Prefer => lease::ScopeAffinity::Prefer,
            Affinity::Strict => lease::ScopeAffinity::Strict,
        };
        Ok(ask)
    }
}

/// Ask for nodes
///
/// The answer is a lease that waits for its nodes: `GET` it with `wait`, or follow the events about it. With an
/// `Idempotency-Key` the same request can be sent again, and gives the same lease.
#[utoipa::path(
    post, path = "/requests", tag = "requests", request_body = NewRequest,
    params(("idempotency-key" = Option<schema::IdempotencyKey>, Header, description = "Makes what is sent twice happen once.")),
    responses(
        (status = 200, description = "It was asked for before with the same key.", body = Lease),
        (status = 201, description = "It is asked for.", body = Lease,
            headers(("location" = String, description = "The address of the lease."))),
        (status = 409, description = "The key was used for another request, or the scope is being closed.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn create_request(
    State(app): State<App>,
    Requestor(caller): Requestor,
    IdempotencyKey(key): IdempotencyKey,
    Json(body): Json<NewRequest>,
) -> Result<Response> {
    let ask = body.ask()?;
    let lessee = caller.as_lessee();
    // The keys of one client say nothing to another.
    let key = key.map(|key| format!("{}/{key}", lessee.name));
    let asked = app.leases.create(&lessee, &ask, key.as_deref()).await;
    let asked = asked.map_err(refused)?;
    let status = if asked.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let location = format!("/api/v1/leases/{}", asked.id);
    let lease = LeaseStatus {
        id: asked.id,
        lease: asked.lease.into(),
        request: None,
        nodes: Vec::new(),
    };
    let lease = Lease::for_caller(&caller, &lease);
    let mut response = Answer(status, lease).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}
