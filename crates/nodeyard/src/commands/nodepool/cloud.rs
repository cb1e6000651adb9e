//! The commands of `nodepool` that talk to a cloud themselves, with the launcher's driver.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use nodeyard_config::Config;
use nodeyard_driver::{Driver, Owner, ResourceKind, SystemId};
use nodeyard_driver_common::DriverContext;
use nodeyard_model::{NodeId, NodeState, ProviderName, UploadState, now};
use nodeyard_status::{Cell, RecordTable};
use nodeyard_store::registry::{Attempt, Registry};
use tracing::warn;

use super::{PATIENCE, lists, nodes};
use crate::commands::launcher::{self, LauncherTools};
use crate::context::CommandContext;

/// Deletes a node in its cloud and then its record.
pub(super) async fn delete_node(
    registry: &Registry,
    id: NodeId,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let nodes = registry.nodes();
    let mut held = match nodes.lock(id, PATIENCE).await? {
        Attempt::Gone => bail!(nodes::not_found(id)),
        Attempt::Busy => bail!(
            "node {id} is locked by its user; try again when it is released, or see `nodepool list`"
        ),
        Attempt::Held(held) => *held,
    };
    let provider = held.value.provider.clone();
    let provider =
        provider.with_context(|| format!("node {id} has no provider to delete it from"))?;
    let config = configuration(context)?;
    let driver = driver(registry, &config, &provider).await?;
    held.value.set_state(NodeState::Deleting, now());
    held.stat = nodes.store(&held.guard, id, &held.value).await?;
    if let Some(machines) = driver.machines() {
        let limit = launcher::timing().delete_limit;
        let deleted = nodeyard_launcher::delete_machine(machines, id, &held.value, limit).await;
        if let Err(error) = deleted {
            held.guard.release().await?;
            return Err(error).with_context(|| {
                format!("failed to delete node {id} from {provider}; a launcher will retry")
            });
        }
    }
    nodes.delete(id, held, now()).await?;
    lists::nodes(registry, Some(id), false, context.format).await
}

/// Lists images that Nodepool or Nodeyard uploaded, according to their tags, and that have no ready record.
pub(super) async fn alien_images(
    registry: &Registry,
    only: Option<&ProviderName>,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let config = configuration(context)?;
    let mut providers = Vec::new();
    for provider in config.providers.values() {
        let name = ProviderName::new(provider.name())?;
        if only.is_none_or(|only| *only == name) {
            providers.push(name);
        }
    }
    if let Some(only) = only
        && providers.is_empty()
    {
        bail!("no provider {only} in the configuration");
    }
    let mut rows = Vec::new();
    for provider in providers {
        let known = ready_images(registry, &provider).await?;
        let images = match tagged_images(registry, &config, &provider).await {
            // The images of the other providers are still useful.
            Err(error) if only.is_none() => {
                warn!(%provider, error = &*error as &dyn std::error::Error, "failed to list the images of a provider; skipping it");
                continue;
            }
            images => images?,
        };
        let aliens = images.into_iter().filter(|(id, _)| !known.contains(id));
        rows.extend(
            aliens.map(|(id, name)| vec![Cell::text(&provider), Cell::text(name), Cell::text(id)]),
        );
    }
    let table = RecordTable::new(
        &[
            ("provider", "Provider"),
            ("name", "Name"),
            ("image_id", "Image ID"),
        ],
        rows,
        now(),
    );
    lists::print(&table, context.format)
}

/// Returns the ids and names of the images of a provider that have the tags of an upload.
async fn tagged_images(
    registry: &Registry,
    config: &Arc<Config>,
    provider: &ProviderName,
) -> anyhow::Result<Vec<(String, String)>> {
    let driver = driver(registry, config, provider).await?;
    let Some(machines) = driver.machines() else {
        return Ok(Vec::new());
    };
    let resources = machines.list().await;
    let resources =
        resources.with_context(|| format!("failed to list the images of {provider}"))?;
    let images = resources
        .into_iter()
        .filter(|resource| resource.kind == ResourceKind::IMAGES && resource.tags.build.is_some());
    Ok(images
        .map(|image| {
            let name = image.name.as_deref().unwrap_or_default();
            (image.id.to_string(), name.to_owned())
        })
        .collect())
}

fn configuration(context: &CommandContext) -> anyhow::Result<Arc<Config>> {
    context.require()
}

async fn driver(
    registry: &Registry,
    config: &Arc<Config>,
    name: &ProviderName,
) -> anyhow::Result<Arc<dyn Driver>> {
    let provider = config.providers.get(name.as_str());
    let provider = provider.with_context(|| {
        format!("provider {name} is not in the configuration, so its cloud cannot be accessed")
    })?;
    let owner = Owner {
        system: SystemId::new(registry.system_id().await?),
        provider: name.clone(),
    };
    let (_, in_force) = tokio::sync::watch::channel(Arc::clone(config));
    let tools = LauncherTools::new(in_force)?;
    let context = DriverContext::new(owner);
    tools
        .drivers
        .make(provider, context)
        .with_context(|| format!("failed to start the driver of {name}"))
}

/// Returns the cloud ids of the provider's ready uploads.
async fn ready_images(
    registry: &Registry,
    provider: &ProviderName,
) -> anyhow::Result<BTreeSet<String>> {
    let images = registry.images();
    let mut ids = BTreeSet::new();
    for image in images.names().await? {
        for (build, _) in images.builds(&image).await? {
            let uploads = images.uploads(&build, provider).await?.into_iter();
            let ready = uploads.filter(|(_, upload)| upload.value.state == UploadState::Ready);
            ids.extend(
                ready.filter_map(|(_, upload)| {
                    upload.value.external_id.as_deref().map(str::to_owned)
                }),
            );
        }
    }
    Ok(ids)
}
