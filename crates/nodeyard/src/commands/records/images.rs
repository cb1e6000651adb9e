//! Images, their builds and the uploads of these.

use std::collections::BTreeSet;

use nodeyard_config::Config;
use nodeyard_model::{BuildState, ImageName, Timestamp, UploadState};
use nodeyard_store::registry::Registry;
use serde_json::{Value, json};

use super::{Entry, age};

/// The age is that of the newest ready build.
pub(super) async fn images(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<Entry>> {
    let images = registry.images();
    let mut names = images.names().await?;
    let configured = config.iter().flat_map(|config| config.images.keys());
    names.extend(configured.filter_map(|name| name.parse::<ImageName>().ok()));
    let mut entries = Vec::new();
    for name in names {
        let mut builds = images.builds(&name).await?;
        builds.sort_by(|(_, a), (_, b)| newest_first(a.value.state_time, b.value.state_time));
        let mut trouble = Vec::new();
        if let Some((_, newest)) = builds.first()
            && newest.value.state == BuildState::Failed
        {
            trouble.push("newest build failed".to_owned());
        }
        let ready = builds
            .iter()
            .find(|(_, build)| build.value.state == BuildState::Ready);
        if ready.is_none() {
            trouble.push("no ready build".to_owned());
        }
        if images.is_paused(&name).await? {
            trouble.push("paused".to_owned());
        }
        let mut uploaded = BTreeSet::new();
        for (build, _) in &builds {
            for provider in images.providers(build).await? {
                let mut uploads = images.uploads(build, &provider).await?;
                uploads
                    .sort_by(|(_, a), (_, b)| newest_first(a.value.state_time, b.value.state_time));
                match uploads.first().map(|(_, upload)| upload.value.state) {
                    Some(UploadState::Ready) => {
                        uploaded.insert(provider.to_string());
                    }
                    Some(UploadState::Failed) => {
                        trouble.push(format!("upload to {provider} failed"));
                    }
                    _ => {}
                }
            }
        }
        entries.push(Entry::new(vec![
            ("name", json!(name.as_str())),
            ("builds", json!(builds.len())),
            ("uploads", json!(uploaded)),
            (
                "age",
                ready.map_or(Value::Null, |(_, build)| age(build.value.state_time)),
            ),
            ("trouble", json!(trouble)),
        ]));
    }
    Ok(entries)
}

fn newest_first(a: Timestamp, b: Timestamp) -> std::cmp::Ordering {
    b.as_secs().total_cmp(&a.as_secs())
}

pub(super) async fn builds(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let images = registry.images();
    let mut entries = Vec::new();
    for name in images.names().await? {
        for (key, build) in images.builds(&name).await? {
            let build = build.value;
            entries.push(Entry::new(vec![
                ("id", json!(format!("{}-{}", key.image, key.build))),
                ("image", json!(key.image.as_str())),
                ("state", json!(build.state.as_str())),
                ("age", age(build.state_time)),
                ("formats", build.formats.iter().collect()),
                ("builder", json!(build.builder)),
                ("source", json!(build.source)),
            ]));
        }
    }
    Ok(entries)
}

/// An upload is called `<build>/<provider>/<upload>`.
pub(super) async fn uploads(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let images = registry.images();
    let mut entries = Vec::new();
    for name in images.names().await? {
        for (build, _) in images.builds(&name).await? {
            for provider in images.providers(&build).await? {
                for (key, upload) in images.uploads(&build, &provider).await? {
                    let upload = upload.value;
                    entries.push(Entry::new(vec![
                        (
                            "id",
                            json!(format!("{}/{provider}/{}", build.build, key.upload)),
                        ),
                        ("image", json!(build.image.as_str())),
                        ("provider", json!(provider.as_str())),
                        ("state", json!(upload.state.as_str())),
                        ("age", age(upload.state_time)),
                        ("external-name", json!(upload.external_name)),
                        ("external-id", json!(upload.external_id)),
                        ("format", json!(upload.format)),
                    ]));
                }
            }
        }
    }
    Ok(entries)
}
