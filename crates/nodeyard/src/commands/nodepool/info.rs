//! `nodepool info`: the records of one provider.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use nodeyard_model::{BuildKey, NodeId, Opaque, ProviderName, now};
use nodeyard_status::{Cell, RecordTable};
use nodeyard_store::registry::Registry;
use serde::Serialize;

use crate::output::{self, OutputFormat};

#[derive(Serialize)]
struct ProviderRecords<'a> {
    images: &'a RecordTable,
    nodes: &'a RecordTable,
}

pub(super) async fn show(
    registry: &Registry,
    provider: &ProviderName,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let images = uploads(registry, provider)
        .await?
        .into_iter()
        .map(|(build, uploads)| {
            vec![
                Cell::text(&build.image),
                Cell::text(build.build),
                Cell::List(uploads),
            ]
        });
    let images = RecordTable::new(
        &[
            ("image", "Image Name"),
            ("build_id", "Build ID"),
            ("upload_ids", "Upload IDs"),
        ],
        images.collect(),
        now(),
    );
    let nodes = nodes(registry, provider).await?.into_iter();
    let nodes = nodes.map(|(id, external)| vec![Cell::text(id), Cell::Json(external)]);
    let nodes = RecordTable::new(
        &[("id", "ID"), ("server_id", "Server ID")],
        nodes.collect(),
        now(),
    );
    if format.is_document() {
        return output::document(
            &ProviderRecords {
                images: &images,
                nodes: &nodes,
            },
            format,
        );
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "ZooKeeper data for provider {provider}\n\nImage data:\n{}",
        images.text(None)
    )?;
    write!(out, "Nodes:\n{}", nodes.text(None))?;
    Ok(())
}

/// Returns the ids of the uploads of every build to a provider.
async fn uploads(
    registry: &Registry,
    provider: &ProviderName,
) -> anyhow::Result<BTreeMap<BuildKey, Vec<String>>> {
    let images = registry.images();
    let mut found = BTreeMap::new();
    for image in images.names().await? {
        for (build, _) in images.builds(&image).await? {
            let uploads = images.uploads(&build, provider).await?;
            if !uploads.is_empty() {
                let ids = uploads.iter().map(|(key, _)| key.upload.to_string());
                found.insert(build, ids.collect());
            }
        }
    }
    Ok(found)
}

async fn nodes(
    registry: &Registry,
    provider: &ProviderName,
) -> anyhow::Result<Vec<(NodeId, Opaque)>> {
    let nodes = registry.nodes().list().await?.into_iter();
    let nodes = nodes.filter(|(_, node)| node.value.provider.as_ref() == Some(provider));
    Ok(nodes
        .map(|(id, node)| (id, node.value.external_id))
        .collect())
}
