//! Nodes: list and show.

use std::collections::BTreeMap;

use axum::extract::State;
use nodeyard_model as model;
use nodeyard_model::{NodeId, NodeState};
use nodeyard_store::registry::NodeShape;
use nodeyard_store::view::Item;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{ApiCaller, TenantDataAccess};
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::{PathParams, QueryParams};
use crate::page::{ListPage, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::{schema, time};

/// A machine, a pod or a slot on a machine.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
pub(crate) struct ApiNode {
    #[schema(value_type = schema::NodeIdSchema)]
    pub(crate) id: String,
    #[schema(value_type = schema::NodeStateSchema)]
    pub(crate) state: &'static str,
    /// When it entered this state.
    #[schema(format = DateTime)]
    pub(crate) since: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// The labels that it satisfies; the first is the one that it was launched for.
    #[schema(examples(json!(["debian"])))]
    labels: Vec<String>,
    provider: Option<String>,
    pool: Option<String>,
    /// It is locked, by its user or by its launcher.
    locked: bool,
    /// The request that it is allocated to.
    request: Option<String>,
    tenant: Option<String>,
    requestor: Option<String>,
    /// The provider's id of the node.
    #[schema(value_type = Value)]
    external_id: serde_json::Value,
    hostname: Option<String>,
    /// The address to connect to.
    address: Option<String>,
    public_ipv4: Option<String>,
    private_ipv4: Option<String>,
    public_ipv6: Option<String>,
    /// How to connect, such as `ssh` or `kubectl`.
    connection_type: Option<String>,
    zone: Option<String>,
    /// The image that it booted from.
    image: Option<String>,
    /// The resources that count against quotas.
    resources: BTreeMap<String, f64>,
    /// Why it is held.
    comment: Option<String>,
    /// In seconds; unlimited if null.
    hold_expiration: Option<i64>,
    launcher: Option<String>,
}

impl ApiNode {
    pub(crate) fn of(id: NodeId, node: &model::Node, locked: bool) -> Self {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Self {
            id: id.to_string(),
            state: node.state.as_str(),
            since: time::shown(node.state_time),
            created: node.created_time.and_then(time::shown),
            labels: node.labels.iter().map(ToString::to_string).collect(),
            provider: node.provider.as_ref().map(ToString::to_string),
            pool: node.pool.as_ref().map(ToString::to_string),
            locked,
            request: node.allocated_to.as_ref().map(ToString::to_string),
            tenant: node.tenant_name.as_ref().map(ToString::to_string),
            requestor: text(node.requestor.as_deref()),
            external_id: serde_json::from_str(node.external_id.text()).unwrap_or_default(),
            hostname: text(node.hostname.as_deref()),
            address: text(node.interface_ip.as_deref()),
            public_ipv4: text(node.public_ipv4.as_deref()),
            private_ipv4: text(node.private_ipv4.as_deref()),
            public_ipv6: text(node.public_ipv6.as_deref()),
            connection_type: text(node.connection_type.as_deref()),
            zone: text(node.az.as_deref()),
            image: text(node.image_id.as_deref()),
            resources: resources(node),
            comment: text(node.comment.as_deref()),
            hold_expiration: node.hold_expiration,
            launcher: node.launcher.as_ref().map(ToString::to_string),
        }
    }

    pub(super) fn of_item(item: &Item<NodeShape>) -> Self {
        Self::of(item.id, &item.value, item.locked)
    }
}

fn resources(node: &model::Node) -> BTreeMap<String, f64> {
    let resources = node.resources.iter().flat_map(model::Resources::iter);
    resources
        .map(|(name, quantity)| (name.to_string(), quantity.as_f64()))
        .collect()
}

/// Which nodes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeQuery {
    /// Only in this state.
    #[param(value_type = Option<schema::NodeStateSchema>)]
    state: Option<NodeState>,
    /// Only with this label.
    label: Option<String>,
    /// Only of this provider.
    provider: Option<String>,
    /// Only those allocated to this request.
    request: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
    cursor: Option<String>,
}

impl NodeQuery {
    fn wants(&self, node: &model::Node) -> bool {
        let state = self.state.is_none_or(|state| state == node.state);
        let label = self.label.as_ref().is_none_or(|label| {
            let mut labels = node.labels.iter();
            labels.any(|own| own.as_str() == label)
        });
        let provider = self.provider.as_ref().is_none_or(|provider| {
            let own = node.provider.as_ref();
            own.is_some_and(|own| own.as_str() == provider)
        });
        let request = self.request.as_ref().is_none_or(|request| {
            let own = node.allocated_to.as_ref();
            own.is_some_and(|own| own.to_string() == *request)
        });
        state && label && provider && request
    }
}

/// List nodes
///
/// Tokens of a tenant see only nodes that were allocated to the tenant.
#[utoipa::path(
    get, path = "/nodes", tag = "nodes", params(NodeQuery),
    responses((status = 200, description = "Nodes, in the order of their ids.", body = ListPage<ApiNode>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_nodes(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    QueryParams(query): QueryParams<NodeQuery>,
) -> Result<JsonResponse<ListPage<ApiNode>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.nodes.for_each(|item| {
        let visible = caller.sees(item.value.tenant_name.as_ref());
        if visible && pagination.starts_before(&item.id) && query.wants(&item.value) {
            found.push(item);
        }
    });
    let found = found.iter().map(|item| (item.id, item));
    let page = pagination.page(found);
    Ok(JsonResponse::ok(ListPage {
        items: page.items.into_iter().map(ApiNode::of_item).collect(),
        next: page.next,
    }))
}

/// Show a node
#[utoipa::path(
    get, path = "/nodes/{id}", tag = "nodes", params(("id" = schema::NodeIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "The node.", body = ApiNode)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_node(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ApiNode>> {
    let item = find(&app, &caller, &id)?;
    Ok(JsonResponse::ok(ApiNode::of_item(&item)))
}

/// Returns a node that is visible to the caller.
pub(crate) fn find(app: &ApiState, caller: &ApiCaller, id: &str) -> Result<Item<NodeShape>> {
    let node = id.parse().ok().and_then(|id| app.views.nodes.get(&id));
    node.filter(|node| caller.sees(node.value.tenant_name.as_ref()))
        .ok_or_else(|| ApiProblem::not_found(format!("no node {id:?}")))
}

/// Renders a node as an event.
pub(crate) fn to_event(item: &Item<NodeShape>) -> Option<(EventSubject, String)> {
    let request = item.value.allocated_to.as_ref();
    let request = request.map(|to| to.to_string().into());
    let subject = EventSubject {
        tenant: item.value.tenant_name.clone(),
        related: request.into_iter().collect(),
        ..EventSubject::new(ObjectKind::Node, item.id.to_string())
    };
    Some((
        subject,
        serde_json::to_string(&ApiNode::of_item(item)).ok()?,
    ))
}
