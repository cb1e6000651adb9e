//! The lists of `nodepool`. What is in them is decided in `nodeyard_status`.

use std::io::{self, Write as _};

use nodeyard_model::{NodeId, now};
use nodeyard_status::{self as status, Table};
use nodeyard_store::registry::Registry;

use crate::output::{self, Format};

pub(super) fn print(table: &Table, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json | Format::Yaml => output::document(table, format),
        Format::Table => Ok(io::stdout().write_all(table.text(None).as_bytes())?),
    }
}

/// Programs get all columns in any case, as they do from the web.
pub(super) async fn nodes(
    registry: &Registry,
    only: Option<NodeId>,
    detail: bool,
    format: Format,
) -> anyhow::Result<()> {
    let detail = detail || format.is_document();
    print(
        &status::all_nodes(registry, only, detail, now()).await?,
        format,
    )
}

pub(super) async fn uploads(registry: &Registry, format: Format) -> anyhow::Result<()> {
    print(&status::uploads(registry, now()).await?, format)
}

pub(super) async fn builds(registry: &Registry, format: Format) -> anyhow::Result<()> {
    print(&status::builds(registry, now()).await?, format)
}

pub(super) async fn image_status(registry: &Registry, format: Format) -> anyhow::Result<()> {
    print(&status::image_status(registry, now()).await?, format)
}

pub(super) async fn requests(registry: &Registry, format: Format) -> anyhow::Result<()> {
    let found = registry.requests().list().await?;
    let rows = found.iter().map(|(id, stored)| (*id, &stored.value));
    print(&status::requests(rows, now()), format)
}
