//! The lists, from the views.

use std::collections::BTreeSet;

use nodeyard_model::{BuildKey, ImageBuild, ImageName, ImageUpload, Timestamp, UploadKey};
use nodeyard_status::{self as status, BuildRow, NodeRow, Table};
use nodeyard_store::registry::{ImageId, ImageRecord};

use super::accept::Format;
use crate::views::{Views, marks};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum List {
    Nodes,
    Uploads,
    Builds,
    Images,
    Requests,
    Labels,
}

impl List {
    /// The paths of all lists, with what each shows.
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

/// All that a list's text depends on, beside what there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    list: List,
    format: Format,
    /// The only node to show.
    node: Option<String>,
    /// Keys of the columns to show.
    fields: Option<String>,
}

impl Wanted {
    /// `node_id` concerns only nodes, and `fields` only text: programs get all. Empty ones say nothing.
    pub(super) fn new(list: List, format: Format, parameters: Vec<(String, String)>) -> Self {
        let mut wanted = Self {
            list,
            format,
            node: None,
            fields: None,
        };
        for (name, value) in parameters {
            let value = Some(value).filter(|value| !value.is_empty());
            match &*name {
                "node_id" if list == List::Nodes => wanted.node = value,
                "fields" if format == Format::Text => wanted.fields = value,
                _ => {}
            }
        }
        wanted
    }

    pub(super) fn render(
        &self,
        views: &Views,
        now: Timestamp,
    ) -> Result<String, serde_json::Error> {
        let table = self.table(views, now);
        match self.format {
            Format::Json => serde_json::to_string(&table),
            Format::Text => {
                let fields = self.fields.as_deref().map(|fields| fields.split(','));
                let fields: Option<Vec<&str>> = fields.map(Iterator::collect);
                let mut text = table.text(fields.as_deref());
                // Nodepool's tables end where their last line does.
                text.truncate(text.trim_end_matches('\n').len());
                Ok(text)
            }
        }
    }

    fn table(&self, views: &Views, now: Timestamp) -> Table {
        match self.list {
            List::Nodes => nodes(views, self.node.as_deref(), now),
            List::Uploads => uploads(views, now),
            List::Builds => builds(views, now),
            List::Images => status::image_table(marks::images(&views.marks), now),
            List::Requests => {
                let found = views.requests.items();
                status::requests(found.iter().map(|item| (item.id, &*item.value)), now)
            }
            List::Labels => {
                let found = views.pools.items();
                status::labels(found.iter().map(|item| &*item.value), now)
            }
        }
    }
}

fn nodes(views: &Views, only: Option<&str>, now: Timestamp) -> Table {
    let found = match only {
        None => views.nodes.items(),
        // What is no id is the id of no node.
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

fn builds(views: &Views, now: Timestamp) -> Table {
    let paused: BTreeSet<ImageName> = marks::paused(&views.marks);
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

fn uploads(views: &Views, now: Timestamp) -> Table {
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
