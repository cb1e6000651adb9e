//! Erases the records of a provider that no longer exists. Its cloud is not touched.

use std::io::{self, BufRead as _, Write as _};

use bytes::Bytes;
use nodeyard_model::{NodeState, ProviderName, Record as _, layout, now};
use nodeyard_store::registry::Registry;
use nodeyard_store::{TreePath, Version, ext};

pub(super) async fn provider(
    registry: &Registry,
    provider: &ProviderName,
    force: bool,
) -> anyhow::Result<()> {
    let mut out = io::stdout();
    if !force {
        writeln!(out, "\nWARNING! This action is not reversible!")?;
        write!(out, "Erase ZooKeeper data for provider {provider}? [N/y] ")?;
        out.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !answer.trim().eq_ignore_ascii_case("y") {
            writeln!(out, "Aborting. No data erased.")?;
            return Ok(());
        }
    }
    writeln!(out, "Erasing build data for {provider}...")?;
    erase_uploads(registry, provider).await?;
    writeln!(out, "Erasing node data for {provider}...")?;
    erase_nodes(registry, provider).await
}

async fn erase_uploads(registry: &Registry, provider: &ProviderName) -> anyhow::Result<()> {
    let images = registry.images();
    for image in images.names().await? {
        for (build, _) in images.builds(&image).await? {
            if let Some(directory) = TreePath::new(layout::uploads(&build, provider))?.parent() {
                ext::delete_recursive(&**registry.tree(), &directory).await?;
            }
        }
    }
    Ok(())
}

/// Erases nodes without locking them, because the holders of the locks work for a provider that no longer exists.
async fn erase_nodes(registry: &Registry, provider: &ProviderName) -> anyhow::Result<()> {
    let tree = registry.tree();
    for (id, stored) in registry.nodes().list().await? {
        let mut node = stored.value;
        if node.provider.as_ref() != Some(provider) {
            continue;
        }
        let path = TreePath::new(layout::node(id))?;
        node.set_state(NodeState::Deleted, now());
        match tree
            .set(&path, Bytes::from(node.to_json()), Version::Any)
            .await
        {
            Err(error) if error.is_no_node() => continue,
            result => result?,
        };
        ext::delete_recursive(&**tree, &path).await?;
    }
    Ok(())
}
