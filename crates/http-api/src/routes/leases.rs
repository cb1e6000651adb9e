//! Leases: getting nodes, keeping them, giving them back.

use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nodeyard_lease as lease;
use nodeyard_lease::{Connection, LeaseId, Leases, PartState, Phase, Status};
use nodeyard_store::view::Changes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::refusal::refused;
use super::requests::{Explanation, explain};
use crate::access::{Caller, Insider, Requestor, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Follow, Kind, Subject};
use crate::extract::{IdempotencyKey, Json, Named, OptionalJson, Query};
use crate::page::{Page, Place};
use crate::problem::Problem;
use crate::whole::{maybe_whole, whole};
use crate::{schema, time};

/// The longest that an answer is waited for.
pub(crate) const MOST_WAIT: u64 = 60;

/// Either way.
const MOST_PRIORITY: u64 = 1_000_000;

/// Nodes that somebody has or waits for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Lease {
    #[schema(value_type = schema::LeaseId)]
    id: String,
    #[schema(value_type = schema::LeasePhase)]
    phase: String,
    /// What was asked for, in order.
    #[schema(examples(json!(["debian"])))]
    labels: Vec<String>,
    /// Its request, while it waits and for a while after.
    #[schema(value_type = Option<schema::RequestId>)]
    request: Option<String>,
    /// What it has or had, in the order of the labels.
    nodes: Vec<LeaseNode>,
    tenant: Option<String>,
    /// Who asked: the name of a token.
    requestor: String,
    scope: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// When it ends unless it is renewed.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// How long a renewal lasts, in seconds.
    duration: u64,
    /// Where the nodes are to come from, and why.
    #[schema(examples("any provider"))]
    placement: String,
    end: Option<LeaseEnd>,
}

/// A node of a lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaseNode {
    #[schema(value_type = schema::NodeId)]
    id: String,
    label: String,
    #[schema(value_type = schema::PartState)]
    state: &'static str,
    /// How to reach it; only for those who may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<ConnectionInfo>,
}

/// How to reach a node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionInfo {
    /// Such as `ssh`, `winrm` or `kubectl`.
    #[schema(examples("ssh"))]
    kind: String,
    /// The address, or what it is called by: a pod, a container.
    #[schema(examples("192.0.2.17"))]
    host: Option<String>,
    #[schema(examples(22))]
    port: Option<u16>,
    #[schema(examples("zuul"))]
    user: Option<String>,
    /// The interpreter for Ansible: a path, or `auto`.
    python: Option<String>,
    shell: Option<String>,
    /// `<type> <base64>` each.
    host_keys: Vec<String>,
    /// How to reach a cluster: server, namespace, token.
    #[schema(value_type = Value)]
    cluster: Option<serde_json::Value>,
}

impl From<Connection> for ConnectionInfo {
    fn from(connection: Connection) -> Self {
        Self {
            kind: connection.kind,
            host: connection.host,
            port: connection.port,
            user: connection.user,
            python: connection.python,
            shell: connection.shell,
            host_keys: connection.host_keys,
            cluster: connection.cluster,
        }
    }
}

/// Why a lease has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaseEnd {
    #[schema(format = DateTime)]
    time: Option<String>,
    #[schema(value_type = schema::EndCause)]
    cause: serde_json::Value,
    /// More about it, for people.
    detail: String,
}

pub(super) fn part_state(state: PartState) -> &'static str {
    match state {
        PartState::Leased => "leased",
        PartState::Held => "held",
        PartState::Returned => "returned",
        PartState::Lost => "lost",
    }
}

impl Lease {
    /// With how to reach the nodes, for those who may know.
    fn of(status: &Status, connections: bool) -> Self {
        let lease = &status.lease;
        let nodes = status.nodes.iter().map(|seen| LeaseNode {
            id: seen.part.node.to_string(),
            label: seen.part.label.to_string(),
            state: part_state(seen.part.state),
            connection: seen
                .node
                .as_ref()
                .filter(|_| connections && seen.part.state == PartState::Leased)
                .map(|node| Connection::of(node).into()),
        });
        Self {
            id: status.id.to_string(),
            phase: lease.phase.to_string(),
            labels: lease.ask.labels.iter().map(ToString::to_string).collect(),
            request: lease.request.map(|request| request.to_string()),
            nodes: nodes.collect(),
            tenant: lease.tenant.as_ref().map(ToString::to_string),
            requestor: lease.requestor.to_string(),
            scope: lease.ask.scope.as_ref().map(ToString::to_string),
            created: time::shown(lease.created),
            expires: time::shown(lease.expires),
            duration: lease.ask.duration,
            placement: lease.placement.to_string(),
            end: lease.end.as_ref().map(|end| LeaseEnd {
                time: time::shown(end.at),
                cause: serde_json::to_value(end.cause).unwrap_or_default(),
                detail: match &end.text {
                    Some(text) => format!("{}: {text}", end.cause),
                    None => end.cause.to_string(),
                },
            }),
        }
    }

    fn for_caller(caller: &Caller, status: &Status) -> Self {
        Self::of(status, may_use(caller, &status.lease))
    }
}

/// Who may look at a lease is decided by its tenant; who may touch it must be its requestor, or of its tenant, or an
/// operator.
pub(super) fn may_use(caller: &Caller, lease: &lease::Lease) -> bool {
    let own = caller.tenant().is_some() || caller.name.as_deref() == Some(&*lease.requestor);
    caller.may(Right::Operate) || own && caller.may(Right::Request)
}

pub(super) fn must_use(caller: &Caller, lease: &lease::Lease) -> Result<()> {
    if may_use(caller, lease) {
        return Ok(());
    }
    Err(Problem::forbidden(
        Right::Operate,
        format!(
            "the lease is {:?}'s; without the right \"operate\" a token can only use its own",
            lease.requestor
        ),
    ))
}

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
    fn ask(self) -> Result<lease::Ask> {
        let labels = self.labels.iter().map(|label| label.as_str().into());
        let mut ask = lease::Ask::new(labels.collect(), Duration::from_secs(self.duration));
        ask.tenant = self.tenant.map(|tenant| tenant.as_str().into());
        ask.provider = self
            .provider
            .map(|provider| provider.parse())
            .transpose()
            .map_err(|error: nodeyard_model::InvalidName| {
                Problem::invalid_body("/provider", error.to_string())
            })?;
        ask.priority = match self.priority {
            Priority::High => lease::Priority::High,
            Priority::Normal => lease::Priority::Normal,
            Priority::Low => lease::Priority::Low,
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
            Affinity::Prefer => lease::Affinity::Prefer,
            Affinity::Strict => lease::Affinity::Strict,
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
    let asked = app.leases.ask(&lessee, &ask, key.as_deref()).await;
    let asked = asked.map_err(refused)?;
    let status = if asked.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let location = format!("/api/v1/leases/{}", asked.id);
    let lease = Status {
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

/// Which leases to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseQuery {
    /// Only in this phase.
    #[param(value_type = Option<schema::LeasePhase>)]
    phase: Option<Phase>,
    /// Only of this requestor.
    requestor: Option<String>,
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    cursor: Option<String>,
}

/// List leases
#[utoipa::path(
    get, path = "/leases", tag = "leases", params(LeaseQuery),
    responses((status = 200, description = "Leases, in the order of their ids.", body = Page<Lease>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_leases(
    State(app): State<App>,
    Insider(caller): Insider,
    Query(query): Query<LeaseQuery>,
) -> Result<Answer<Page<Lease>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let mut found = app.leases.list(&caller.as_lessee());
    found.retain(|status| {
        let phase = query.phase.is_none_or(|phase| phase == status.lease.phase);
        let requestor = query.requestor.as_deref();
        phase && requestor.is_none_or(|requestor| requestor == &*status.lease.requestor)
    });
    let page = place.fill(found.iter().map(|status| (status.id, status)));
    let items = page.items.into_iter();
    Ok(Answer::ok(Page {
        items: items
            .map(|status| Lease::for_caller(&caller, status))
            .collect(),
        next: page.next,
    }))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// Answer when there is nothing to wait for any more, at the latest after so many seconds.
    #[param(maximum = 60)]
    wait: Option<u64>,
}

impl WaitQuery {
    pub(super) fn patience(&self) -> Result<Duration> {
        let wait = self.wait.unwrap_or(0);
        if wait > MOST_WAIT {
            return Err(Problem::bad_request(format!(
                "`wait` is {wait}; it must be at most {MOST_WAIT}"
            )));
        }
        Ok(Duration::from_secs(wait))
    }
}

/// Show a lease
///
/// With `wait` the answer comes when it has its nodes, or will not get any.
#[utoipa::path(
    get, path = "/leases/{id}", tag = "leases",
    params(("id" = schema::LeaseId, Path, description = "Its id."), WaitQuery),
    responses((status = 200, description = "The lease.", body = Lease)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_lease(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(id): Named<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Lease>> {
    let patience = query.patience()?;
    let id = lease_id(&id)?;
    let lessee = caller.as_lessee();
    let waiter = app.hub.waiting.join(Kind::Lease, &id.to_string());
    let settled = async {
        loop {
            let change = waiter.next_change();
            let status = app.leases.get(&lessee, id).await?;
            if is_settled(&status.lease) {
                return Ok(status);
            }
            change.await;
        }
    };
    let status = match app.wait(patience, settled).await? {
        Some(settled) => settled,
        None => app.leases.get(&lessee, id).await,
    };
    let status = status.map_err(refused)?;
    Ok(Answer::ok(Lease::for_caller(&caller, &status)))
}

/// There is nothing to wait for any more.
fn is_settled(lease: &lease::Lease) -> bool {
    !matches!(
        lease.phase,
        Phase::Waiting | Phase::Taking | Phase::Dropping
    )
}

pub(super) fn lease_id(text: &str) -> Result<LeaseId> {
    let id = text.parse();
    id.map_err(|_| Problem::not_found(format!("there is no lease {text:?}")))
}

/// A lease that the caller may touch.
pub(super) async fn own(app: &App, caller: &Caller, id: LeaseId) -> Result<Status> {
    let status = app.leases.get(&caller.as_lessee(), id).await;
    let status = status.map_err(refused)?;
    must_use(caller, &status.lease)?;
    Ok(status)
}

/// For how long to renew.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"duration": 600})))]
pub(crate) struct Renewal {
    /// Seconds from now on; the time that was asked for when absent.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub(super) duration: Option<u64>,
}

/// Renew a lease
///
/// A lease that is not renewed in time ends, and its nodes are given back.
#[utoipa::path(
    post, path = "/leases/{id}/renew", tag = "leases", request_body = Option<Renewal>,
    params(("id" = schema::LeaseId, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is renewed.", body = Lease),
        (status = 409, description = "It is over.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn renew_lease(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(id): Named<String>,
    OptionalJson(body): OptionalJson<Renewal>,
) -> Result<Answer<Lease>> {
    let id = lease_id(&id)?;
    own(&app, &caller, id).await?;
    let lessee = caller.as_lessee();
    let renewed = app.leases.renew(&lessee, id, body.duration).await;
    renewed.map_err(refused)?;
    let status = app.leases.get(&lessee, id).await.map_err(refused)?;
    Ok(Answer::ok(Lease::for_caller(&caller, &status)))
}

/// End a lease
///
/// A request that waits is taken back; nodes are given back. One that is over stays as it is.
#[utoipa::path(
    delete, path = "/leases/{id}", tag = "leases",
    params(("id" = schema::LeaseId, Path, description = "Its id.")),
    responses((status = 200, description = "It is over.", body = Lease)),
    security(("token" = ["request"])),
)]
pub(crate) async fn end_lease(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(id): Named<String>,
) -> Result<Answer<Lease>> {
    let id = lease_id(&id)?;
    end(&app, &caller, id).await
}

pub(super) async fn end(app: &App, caller: &Caller, id: LeaseId) -> Result<Answer<Lease>> {
    own(app, caller, id).await?;
    let lessee = caller.as_lessee();
    app.leases.release(&lessee, id).await.map_err(refused)?;
    let status = app.leases.get(&lessee, id).await.map_err(refused)?;
    Ok(Answer::ok(Lease::for_caller(caller, &status)))
}

/// Explain why a lease waits
#[utoipa::path(
    get, path = "/leases/{id}/explanation", tag = "leases",
    params(("id" = schema::LeaseId, Path, description = "Its id.")),
    responses((status = 200, description = "Why its request waits, or what became of it.", body = Explanation)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn explain_lease(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(id): Named<String>,
) -> Result<Answer<Explanation>> {
    let id = lease_id(&id)?;
    let status = app.leases.get(&caller.as_lessee(), id).await;
    let status = status.map_err(refused)?;
    let explained = match status.lease.request {
        Some(request) => explain(&app, request).await?,
        None => None,
    };
    explained.ok_or_else(|| {
        Problem::not_found(format!("nothing is known yet of the request of lease {id}"))
    })
}

/// Leases, as events tell of them.
pub(crate) struct LeaseFeed(pub(crate) Leases);

#[async_trait]
impl Follow for LeaseFeed {
    type Id = LeaseId;
    type Key = LeaseId;

    fn changes(&self) -> Changes<LeaseId> {
        self.0.changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.0.synced().await
    }

    fn key(&self, id: &LeaseId) -> LeaseId {
        *id
    }

    fn keys(&self) -> Vec<LeaseId> {
        self.0.seen_ids().0
    }

    fn show(&self, id: &LeaseId) -> Option<(Subject, String)> {
        let status = self.0.seen(*id)?;
        let request = status.lease.request.map(|request| request.to_string());
        let nodes = status.lease.parts.iter().map(|part| part.node.to_string());
        let shown = Lease::of(&status, false);
        let related = request.into_iter().chain(nodes).chain(shown.scope.clone());
        let subject = Subject {
            tenant: status.lease.tenant.clone(),
            related: related.map(Into::into).collect(),
            ..Subject::new(Kind::Lease, id.to_string())
        };
        Some((subject, serde_json::to_string(&shown).ok()?))
    }
}
