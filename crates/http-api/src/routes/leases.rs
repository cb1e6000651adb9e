//! Leases: keeping nodes, giving them back.

mod shown;

use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use nodeyard_lease as lease;
use nodeyard_lease::{LeaseId, LeasePhase, LeaseStatus, Leases};
use nodeyard_store::view::Changes;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::refusal::refused;
use super::requests::{Explanation, explain};
use crate::access::{Caller, Insider, Requestor, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Follow, Kind, Subject};
use crate::extract::{Named, OptionalJson, Query};
use crate::page::{Page, Place};
use crate::problem::Problem;
use crate::schema;
use crate::whole::maybe_whole;

pub(super) use self::shown::{ConnectionInfo, Lease};

/// The longest that an answer is waited for.
const MOST_WAIT: u64 = 60;

/// Who may look at a lease is decided by its tenant; who may touch it must be its requestor, or of its tenant, or an
/// operator.
fn may_use(caller: &Caller, lease: &lease::Lease) -> bool {
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

/// Which leases to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseQuery {
    /// Only in this phase.
    #[param(value_type = Option<schema::LeasePhase>)]
    phase: Option<LeasePhase>,
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
            if status.lease.phase.is_settled() {
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

pub(super) fn lease_id(text: &str) -> Result<LeaseId> {
    let id = text.parse();
    id.map_err(|_| Problem::not_found(format!("there is no lease {text:?}")))
}

/// A lease that the caller may touch.
pub(super) async fn own(app: &App, caller: &Caller, id: LeaseId) -> Result<LeaseStatus> {
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
        self.0.cached_ids().0
    }

    fn show(&self, id: &LeaseId) -> Option<(Subject, String)> {
        let status = self.0.cached(*id)?;
        let request = status.lease.request.map(|request| request.to_string());
        let nodes = status
            .lease
            .nodes
            .iter()
            .map(|leased| leased.node.to_string());
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
