//! Launchers and builders that are running.

use axum::extract::State;
use nodeyard_model::layout::RecordPath as Path;
use nodeyard_model::{Component as Record, ComponentKind, Record as _};
use nodeyard_store::TreePath;
use nodeyard_store::view::{Item, Kind as PathKind, Shape};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Reader;
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::Query;
use crate::page::{Page, PageQuery, Place};
use crate::schema;

/// A launcher or a builder that is running.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Component {
    /// Good for telling components apart; another one after each restart.
    #[schema(examples("launcher/np01.0000000003"))]
    id: String,
    #[schema(examples("launcher"))]
    kind: &'static str,
    hostname: String,
    #[schema(value_type = schema::ComponentState)]
    state: &'static str,
    version: Option<String>,
}

impl Component {
    fn of(id: &str, component: &Record) -> Self {
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
    responses((status = 200, description = "Launchers and builders, in the order of their ids.", body = Page<Component>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_components(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Component>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let all = app.components.items().into_iter();
    let all = all.map(|item| {
        let shown = Component::of(&item.id, &item.value);
        (item.id, shown)
    });
    Ok(Answer::ok(place.fill(all)))
}

/// Launchers and builders; pools are in a view of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComponentShape;

impl Shape for ComponentShape {
    /// `<kind>/<name>`
    type Id = String;
    type Value = Record;

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
    ) -> Result<Record, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Record::from_json(data)?)
    }
}

/// As events tell of it.
pub(crate) fn tell(item: &Item<ComponentShape>) -> Option<(Subject, String)> {
    let json = serde_json::to_string(&Component::of(&item.id, &item.value)).ok()?;
    Some((Subject::new(Kind::Component, item.id.as_str()), json))
}
