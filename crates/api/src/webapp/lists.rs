//! Renders the lists from the cached views.

use std::collections::BTreeSet;

use nodeyard_model::{BuildKey, ImageBuild, ImageName, ImageUpload, Timestamp, UploadKey};
use nodeyard_status::{self as status, BuildRow, NodeRow, RecordTable};
use nodeyard_store::registry::{ImageId, ImageRecord};

use super::accept::ListFormat;
use crate::views::{StatusViews, image_markers};

/// Which list to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ListKind {
    Nodes,
    Uploads,
    Builds,
    Images,
    Requests,
    Labels,
}

impl ListKind {
    /// The paths of all lists, with a description of each.
    pub(super) const PATHS: [(&'static str, &'static str); 6] = [
        ("/node-list", "nodes"),
        ("/request-list", "node requests"),
        ("/label-list", "labels"),
        ("/dib-image-list", "image builds"),
        ("/image-list", "image uploads"),
        ("/image-status", "images: paused, build requests"),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "node-list" => Self::Nodes,
            "image-list" => Self::Uploads,
            "dib-image-list" => Self::Builds,
            "image-status" => Self::Images,
            "request-list" => Self::Requests,
            "label-list" => Self::Labels,
            _ => return None,
        })
    }
}

/// The parameters of a list, which are the key of its cached page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ListQuery {
    list: ListKind,
    format: ListFormat,
    /// The id of the only node to list.
    node: Option<String>,
    /// Keys of the columns to render.
    fields: Option<String>,
}

impl ListQuery {
    /// Parses the query parameters: `node_id` applies to nodes only, `fields` to text only; empty values are ignored.
    pub(super) fn new(
        list: ListKind,
        format: ListFormat,
        parameters: Vec<(String, String)>,
    ) -> Self {
        let mut query = Self {
            list,
            format,
            node: None,
            fields: None,
        };
        for (name, value) in parameters {
            let value = Some(value).filter(|value| !value.is_empty());
            match &*name {
                "node_id" if list == ListKind::Nodes => query.node = value,
                "fields" if format == ListFormat::Text => query.fields = value,
                _ => {}
            }
        }
        query
    }

    pub(super) fn render(
        &self,
        views: &StatusViews,
        now: Timestamp,
    ) -> Result<String, serde_json::Error> {
        let table = self.table(views, now);
        match self.format {
            ListFormat::Json => serde_json::to_string(&table),
            ListFormat::Text => {
                let fields = self.fields.as_deref().map(|fields| fields.split(','));
                let fields: Option<Vec<&str>> = fields.map(Iterator::collect);
                let mut text = table.text(fields.as_deref());
                // Nodepool's tables have no newline at the end.
                text.truncate(text.trim_end_matches('\n').len());
                Ok(text)
            }
        }
    }

    fn table(&self, views: &StatusViews, now: Timestamp) -> RecordTable {
        match self.list {
            ListKind::Nodes => nodes(views, self.node.as_deref(), now),
            ListKind::Uploads => uploads(views, now),
            ListKind::Builds => builds(views, now),
            ListKind::Images => {
                status::image_table(image_markers::images(&views.image_markers), now)
            }
            ListKind::Requests => {
                let found = views.requests.items();
                status::requests(found.iter().map(|item| (item.id, &*item.value)), now)
            }
            ListKind::Labels => {
                let found = views.pools.items();
                status::labels(found.iter().map(|item| &*item.value), now)
            }
        }
    }
}

fn nodes(views: &StatusViews, only: Option<&str>, now: Timestamp) -> RecordTable {
    let found = match only {
        None => views.nodes.items(),
        // An invalid id matches no node.
        Some(id) => {
            let node = id.parse().ok().and_then(|id| views.nodes.get(&id));
            node.into_iter().collect()
        }
    };
    let rows = found.iter().map(|item| NodeRow {
        id: item.id,
        node: &item.value,
        locked: item.locked,
    });
    status::nodes(rows, true, now)
}

fn builds(views: &StatusViews, now: Timestamp) -> RecordTable {
    let paused: BTreeSet<ImageName> = image_markers::paused(&views.image_markers);
    let found = views.images.items();
    let rows = found.iter().filter_map(|item| {
        let (key, build) = build(&item.id, &item.value)?;
        Some(BuildRow {
            key,
            build,
            paused: paused.contains(&key.image),
        })
    });
    status::build_table(rows, now)
}

fn build<'a>(id: &'a ImageId, record: &'a ImageRecord) -> Option<(&'a BuildKey, &'a ImageBuild)> {
    match (id, record) {
        (ImageId::Build(key), ImageRecord::Build(build)) => Some((key, build)),
        _ => None,
    }
}

fn uploads(views: &StatusViews, now: Timestamp) -> RecordTable {
    let found = views.images.items();
    let rows = found
        .iter()
        .filter_map(|item| upload(&item.id, &item.value));
    status::upload_table(rows, now)
}

fn upload<'a>(
    id: &'a ImageId,
    record: &'a ImageRecord,
) -> Option<(&'a UploadKey, &'a ImageUpload)> {
    match (id, record) {
        (ImageId::Upload(key), ImageRecord::Upload(upload)) => Some((key, upload)),
        _ => None,
    }
}
