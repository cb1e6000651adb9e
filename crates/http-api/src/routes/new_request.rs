//! Requesting nodes, which creates a lease.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nodeyard_lease as lease;
use nodeyard_lease::LeaseStatus;
use serde::Deserialize;
use utoipa::ToSchema;

use super::lease_errors::lease_problem;
use super::leases::ApiLease;
use crate::access::RequestAccess;
use crate::app::ApiState;
use crate::extract::{IdempotencyKey, JsonBody};
use crate::integer::integer;
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::schema;

/// The largest absolute value of a relative priority.
const MAX_PRIORITY: u64 = 1_000_000;

/// A request for nodes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"labels": ["debian"], "duration": 3600})))]
pub(crate) struct NewRequest {
    /// The label of each node, in order.
    #[schema(value_type = Vec<schema::LabelNameSchema>, min_items = 1, max_items = 100)]
    labels: Vec<String>,
    /// How long the nodes are kept unless the lease is renewed, in seconds. A waiting request is kept as long.
    #[schema(minimum = 1, maximum = 2_592_000)]
    #[serde(default = "an_hour", deserialize_with = "integer")]
    duration: u64,
    /// The tenant of the request; only for tokens without a tenant.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelNameSchema>)]
    tenant: Option<String>,
    /// The only acceptable provider.
    #[serde(default)]
    #[schema(value_type = Option<schema::PathTextSchema>)]
    provider: Option<String>,
    #[serde(default)]
    #[schema(inline)]
    priority: RequestPriority,
    /// Lower values are served earlier, among requests of the same priority.
    #[serde(default, deserialize_with = "integer")]
    #[schema(default = 0, minimum = -1_000_000, maximum = 1_000_000)]
    relative_priority: i64,
    /// The scope that owns the lease; created if it does not exist.
    #[serde(default)]
    #[schema(value_type = Option<schema::ScopeNameSchema>)]
    scope: Option<String>,
    #[serde(default)]
    #[schema(inline)]
    affinity: RequestAffinity,
}

fn an_hour() -> u64 {
    3600
}

/// The precedence of a request.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestPriority {
    High,
    #[default]
    Normal,
    Low,
}

/// What to do if the provider of a scope's first nodes cannot serve the request.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestAffinity {
    /// Use any other provider.
    #[default]
    Prefer,
    /// Fail the request.
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
                ApiProblem::invalid_body("/provider", error.to_string())
            })?;
        ask.priority = match self.priority {
            RequestPriority::High => lease::LeasePriority::High,
            RequestPriority::Normal => lease::LeasePriority::Normal,
            RequestPriority::Low => lease::LeasePriority::Low,
        };
        if self.relative_priority.unsigned_abs() > MAX_PRIORITY {
            let text = format!("it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}");
            return Err(ApiProblem::invalid_body("/relative_priority", text));
        }
        ask.relative_priority = self.relative_priority;
        ask.scope = self
            .scope
            .map(|scope| scope.parse())
            .transpose()
            .map_err(lease_problem)?;
        ask.affinity = match self.affinity {
            RequestAffinity::Prefer => lease::ScopeAffinity::Prefer,
            RequestAffinity::Strict => lease::ScopeAffinity::Strict,
        };
        Ok(ask)
    }
}

/// Request nodes
///
/// The response is a lease that waits for its nodes: `GET` it with `wait`, or stream the events about it. Repeating the
/// request with the same `Idempotency-Key` returns the same lease.
#[utoipa::path(
    post, path = "/requests", tag = "requests", request_body = NewRequest,
    params(("idempotency-key" = Option<schema::IdempotencyKeySchema>, Header, description = "Makes repeated requests take effect only once.")),
    responses(
        (status = 200, description = "The lease that was created earlier with the same key.", body = ApiLease),
        (status = 201, description = "The nodes are requested.", body = ApiLease,
            headers(("location" = String, description = "The path of the lease."))),
        (status = 409, description = "The key was used for another request, or the scope is being closed.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn create_request(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    IdempotencyKey(key): IdempotencyKey,
    JsonBody(body): JsonBody<NewRequest>,
) -> Result<Response> {
    let ask = body.ask()?;
    let lease_caller = caller.to_lease_caller();
    // Keys of different clients are independent.
    let key = key.map(|key| format!("{}/{key}", lease_caller.name));
    let asked = app.leases.create(&lease_caller, &ask, key.as_deref()).await;
    let asked = asked.map_err(lease_problem)?;
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
    let lease = ApiLease::for_caller(&caller, &lease);
    let mut response = JsonResponse(status, lease).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}
