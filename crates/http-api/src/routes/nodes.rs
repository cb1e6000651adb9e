//! Machines: what there are, how to reach them, and keeping or ending them.

use std::collections::BTreeMap;

use axum::extract::State;
use nodeyard_model as model;
use nodeyard_model::{NodeId, NodeState};
use nodeyard_store::registry::NodeShape;
use nodeyard_store::view::Item;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Insider};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::{Named, Query};
use crate::page::{Page, Place};
use crate::problem::Problem;
use crate::{schema, time};

/// A machine, a pod or a slot on a machine.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Node {
    #[schema(value_type = schema::NodeId)]
    pub(crate) id: String,
    #[schema(value_type = schema::NodeState)]
    pub(crate) state: &'static str,
    /// Since when it is in this state.
    #[schema(format = DateTime)]
    pub(crate) since: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// What it can be asked for as; the first is what it was launched for.
    #[schema(examples(json!(["debian"])))]
    labels: Vec<String>,
    provider: Option<String>,
    pool: Option<String>,
    /// Somebody holds its lock: who uses it, or who works on it.
    locked: bool,
    /// The request it was given to.
    request: Option<String>,
    tenant: Option<String>,
    requestor: Option<String>,
    /// How its provider calls it.
    #[schema(value_type = Value)]
    external_id: serde_json::Value,
    hostname: Option<String>,
    /// Where to connect to.
    address: Option<String>,
    public_ipv4: Option<String>,
    private_ipv4: Option<String>,
    public_ipv6: Option<String>,
    /// How to connect, such as `ssh` or `kubectl`.
    connection_type: Option<String>,
    zone: Option<String>,
    /// What it booted from.
    image: Option<String>,
    /// What it takes of the quotas.
    resources: BTreeMap<String, f64>,
    /// Why it is held.
    comment: Option<String>,
    /// Seconds that it may be held; without end when null.
    hold_expiration: Option<i64>,
    launcher: Option<String>,
}

impl Node {
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
    #[param(value_type = Option<schema::NodeState>)]
    state: Option<NodeState>,
    /// Only with this label.
    label: Option<String>,
    /// Only of this provider.
    provider: Option<String>,
    /// Only those given to this request.
    request: Option<String>,
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
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
/// Tokens of a tenant see the nodes that were given to that tenant.
#[utoipa::path(
    get, path = "/nodes", tag = "nodes", params(NodeQuery),
    responses((status = 200, description = "Nodes, in the order of their ids.", body = Page<Node>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_nodes(
    State(app): State<App>,
    Insider(caller): Insider,
    Query(query): Query<NodeQuery>,
) -> Result<Answer<Page<Node>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.nodes.for_each(|item| {
        let visible = caller.sees(item.value.tenant_name.as_ref());
        if visible && place.is_before(&item.id) && query.wants(&item.value) {
            found.push(item);
        }
    });
    let found = found.iter().map(|item| (item.id, item));
    let page = place.fill(found);
    Ok(Answer::ok(Page {
        items: page.items.into_iter().map(Node::of_item).collect(),
        next: page.next,
    }))
}

/// Show a node
#[utoipa::path(
    get, path = "/nodes/{id}", tag = "nodes", params(("id" = schema::NodeId, Path, description = "Its id.")),
    responses((status = 200, description = "The node.", body = Node)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_node(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(id): Named<String>,
) -> Result<Answer<Node>> {
    let item = find(&app, &caller, &id)?;
    Ok(Answer::ok(Node::of_item(&item)))
}

/// A node that is there for the caller.
pub(crate) fn find(app: &App, caller: &Caller, id: &str) -> Result<Item<NodeShape>> {
    let node = id.parse().ok().and_then(|id| app.views.nodes.get(&id));
    node.filter(|node| caller.sees(node.value.tenant_name.as_ref()))
        .ok_or_else(|| Problem::not_found(format!("there is no node {id:?}")))
}

/// As events tell of it.
pub(crate) fn tell(item: &Item<NodeShape>) -> Option<(Subject, String)> {
    let request = item.value.allocated_to.as_ref();
    let request = request.map(|to| to.to_string().into());
    let subject = Subject {
        tenant: item.value.tenant_name.clone(),
        related: request.into_iter().collect(),
        ..Subject::new(Kind::Node, item.id.to_string())
    };
    Some((subject, serde_json::to_string(&Node::of_item(item)).ok()?))
}
