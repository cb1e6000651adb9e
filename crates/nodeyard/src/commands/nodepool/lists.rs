//! The lists of `nodepool`. Their content is defined in `nodeyard_status`.

use std::io::{self, Write as _};

use nodeyard_model::{NodeId, now};
use nodeyard_status::{self as status, RecordTable};
use nodeyard_store::registry::Registry;

use crate::output::{self, OutputFormat};

pub(super) fn print(table: &RecordTable, format: OutputFormat) -> anyhow::Result<()> {
    match format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(table, format),
        OutputFormat::Table => Ok(io::stdout().write_all(table.text(None).as_bytes())?),
    }
}

/// Lists nodes. JSON and YAML contain all columns, as on the web.
pub(super) async fn nodes(
    registry: &Registry,
    only: Option<NodeId>,
    detail: bool,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let detail = detail || format.is_document();
    print(
        &status::all_nodes(registry, only, detail, now()).await?,
        format,
    )
}

pub(super) async fn uploads(registry: &Registry, format: OutputFormat) -> anyhow::Result<()> {
    print(&status::uploads(registry, now()).await?, format)
}

pub(super) async fn builds(registry: &Registry, format: OutputFormat) -> anyhow::Result<()> {
    print(&status::builds(registry, now()).await?, format)
}

pub(super) async fn image_status(registry: &Registry, format: OutputFormat) -> anyhow::Result<()> {
    print(&status::image_status(registry, now()).await?, format)
}

pub(super) async fn requests(registry: &Registry, format: OutputFormat) -> anyhow::Result<()> {
    let found = registry.requests().list().await?;
    let rows = found.iter().map(|(id, stored)| (*id, &stored.value));
    print(&status::requests(rows, now()), format)
}
