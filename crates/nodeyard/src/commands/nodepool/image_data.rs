//! Image data in Nodepool's format: a JSON object that maps paths to data.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use nodeyard_model::layout::{self, RecordPath};
use nodeyard_store::registry::Registry;
use nodeyard_store::{CreateMode, Tree, TreePath, Version, ext};

use crate::dump;
use crate::export_file::ExportFile;

pub(in crate::commands) async fn export(registry: &Registry, file: &Path) -> anyhow::Result<()> {
    let images = registry.images();
    let tree = registry.tree();
    let mut data = BTreeMap::new();
    for image in images.names().await? {
        if images.is_paused(&image).await? {
            data.insert(layout::image_pause(&image), String::new());
        }
        for (build, _) in images.builds(&image).await? {
            copy(&**tree, layout::build(&build), &mut data).await?;
            for provider in images.providers(&build).await? {
                for (upload, _) in images.uploads(&build, &provider).await? {
                    copy(&**tree, layout::upload(&upload), &mut data).await?;
                }
            }
        }
    }
    let text = serde_json::to_vec(&data)?;
    let mut out = ExportFile::open(file)?;
    out.write_all(&text)
        .with_context(|| format!("failed to write {}", file.display()))?;
    out.finish()
}

async fn copy(
    tree: &dyn Tree,
    path: String,
    data: &mut BTreeMap<String, String>,
) -> anyhow::Result<()> {
    if let Some(record) = ext::get_opt(tree, &TreePath::new(path.as_str())?).await? {
        let text = String::from_utf8(record.data.to_vec())
            .with_context(|| format!("{path} is not text"))?;
        data.insert(path, text);
    }
    Ok(())
}

/// Imports image data. Checks all of it before anything is written.
pub(in crate::commands) async fn import(registry: &Registry, file: &Path) -> anyhow::Result<()> {
    let reading = || format!("failed to import {}", file.display());
    let text = std::fs::read(file).with_context(reading)?;
    let data: BTreeMap<String, String> = serde_json::from_slice(&text)
        .context("expected a JSON object from paths to data, as export-image-data writes it")
        .with_context(reading)?;
    for path in data.keys() {
        let known = matches!(
            RecordPath::parse(path),
            Some(RecordPath::ImagePause(_) | RecordPath::Build(_) | RecordPath::Upload(_))
        );
        ensure!(
            known,
            "failed to import {}: {path} is not image data",
            file.display()
        );
    }
    let tree = registry.tree();
    // Parents sort before their children.
    for (path, text) in data {
        write(&**tree, &path, Bytes::from(text)).await?;
    }
    Ok(())
}

/// Writes a record. The ids of uploads come from a counter, which must be larger than every id in use.
async fn write(tree: &dyn Tree, path: &str, data: Bytes) -> anyhow::Result<()> {
    let record = TreePath::new(path)?;
    let parent = record.parent();
    if let Some(parent) = &parent {
        ext::ensure_path(tree, parent).await?;
    }
    match tree
        .create(&record, data.clone(), CreateMode::Persistent)
        .await
    {
        Err(error) if error.is_node_exists() => {
            tree.set(&record, data, Version::Any).await?;
        }
        result => {
            result?;
        }
    }
    // Afterwards, since the creation of the record advances the counter, too.
    if let (Some(RecordPath::Upload(key)), Some(parent)) = (RecordPath::parse(path), &parent) {
        let next = u32::try_from(key.upload.sequence())?.saturating_add(1);
        dump::advance_counter(tree, parent, next).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nodeyard_model::{BuildKey, ImageUpload, UploadState, now};
    use nodeyard_store::embedded::Embedded;

    use super::*;

    #[tokio::test]
    async fn the_next_upload_after_an_import_has_the_next_number() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(directory.path()).unwrap();
        let registry = Registry::new(store.session());
        let build = BuildKey {
            image: "debian".parse().unwrap(),
            build: "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b".parse().unwrap(),
        };
        let provider = "cloud".parse().unwrap();
        let uploads = layout::uploads(&build, &provider);
        let record = "{\"state\": \"ready\", \"state_time\": 1.5}";
        let data = BTreeMap::from([
            (layout::build(&build), record),
            (format!("{uploads}/0000000004"), record),
            (format!("{uploads}/0000000007"), record),
        ]);
        let file = directory.path().join("data.json");
        std::fs::write(&file, serde_json::to_vec(&data).unwrap()).unwrap();
        // What is there already is written again.
        for next in [8, 9] {
            import(&registry, &file).await.unwrap();
            let upload = ImageUpload::new(UploadState::Uploading, now());
            let images = registry.images();
            let (key, _) = images
                .create_upload(&build, &provider, &upload)
                .await
                .unwrap();
            assert_eq!(key.upload.sequence(), next);
        }
    }
}
