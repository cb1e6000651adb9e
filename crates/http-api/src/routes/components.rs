//! Launchers and builders that are running.

use axum::extract::State;
use nodeyard_model::layout::RecordPath as Path;
use nodeyard_model::{Component as ComponentRecord, ComponentKind, Record as _};
use nodeyard_store::TreePath;
use nodeyard_store::view::{Item, Kind as PathKind, Shape};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::ReadAccess;
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::QueryParams;
use crate::page::{ListPage, PageQuery, Pagination};
use crate::response::{JsonResponse, Result};
use crate::schema;

/// A launcher or a builder that is running.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Component)]
pub(crate) struct ApiComponent {
    /// Identifies the component; changes with each restart.
    #[schema(examples("launcher/np01.0000000003"))]
    id: String,
    #[schema(examples("launcher"))]
    kind: &'static str,
    hostname: String,
    #[schema(value_type = schema::ComponentStateSchema)]
    state: &'static str,
    version: Option<String>,
}

impl ApiComponent {
    fn of(id: &str, component: &ComponentRecord) -> Self {
        Self {
            id: id.to_owned(),
            kind: component.kind.as_str(),
            hostname: component.hostname.to_string(),
            state: component.state.as_str(),
            version: component.version.as_deref().map(str::to_owned),
        }
    }
}

/// List components
#[utoipa::path(
    get, path = "/components", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Launchers and builders, in the order of their ids.", body = ListPage<ApiComponent>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_components(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiComponent>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let all = app.components.items().into_iter();
    let all = all.map(|item| {
        let shown = ApiComponent::of(&item.id, &item.value);
        (item.id, shown)
    });
    Ok(JsonResponse::ok(pagination.page(all)))
}

/// Parses the records of launchers and builders. Pools have a view of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComponentShape;

impl Shape for ComponentShape {
    /// `<kind>/<name>`
    type Id = String;
    type Value = ComponentRecord;

    fn kind(&self, path: &TreePath) -> PathKind<String> {
        match Path::parse(path.as_str()) {
            Some(Path::Component(
                kind @ (ComponentKind::Launcher | ComponentKind::Builder),
                name,
            )) => PathKind::Record {
                id: format!("{kind}/{name}"),
                branch: false,
                lock: false,
            },
            None if matches!(path.name(), "launcher" | "builder") => PathKind::Directory,
            _ => PathKind::Nothing,
        }
    }

    fn parse(
        &self,
        _: &String,
        data: &[u8],
    ) -> Result<ComponentRecord, Box<dyn std::error::Error + Send + Sync>> {
        Ok(ComponentRecord::from_json(data)?)
    }
}

/// Renders a component as an event.
pub(crate) fn to_event(item: &Item<ComponentShape>) -> Option<(EventSubject, String)> {
    let json = serde_json::to_string(&ApiComponent::of(&item.id, &item.value)).ok()?;
    Some((
        EventSubject::new(ObjectKind::Component, item.id.as_str()),
        json,
    ))
}
