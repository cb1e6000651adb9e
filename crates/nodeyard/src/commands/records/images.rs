//! Entries of images, builds and uploads.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_config::Config;
use nodeyard_model::{
    BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, ProviderName, UploadKey, UploadState,
};
use nodeyard_plan::images::Subject;
use nodeyard_store::registry::{Registry, Stored};
use serde_json::{Value, json};

use super::{RecordEntry, age};

/// The records of one image, the newest build first.
struct ImageRecords {
    builds: Vec<(BuildKey, Stored<ImageBuild>)>,
    /// The state of the newest upload to each provider.
    uploads: BTreeMap<ProviderName, UploadState>,
    notes: ImageNotes,
    requested: bool,
    paused: bool,
}

impl ImageRecords {
    async fn read(registry: &Registry, name: &ImageName) -> anyhow::Result<Self> {
        let images = registry.images();
        let mut builds = images.builds(name).await?;
        builds.sort_by_key(|(_, build)| std::cmp::Reverse(build.stat.czxid));
        let mut uploads = BTreeMap::new();
        for (build, _) in &builds {
            for provider in images.providers(build).await? {
                let of_build = images.uploads(build, &provider).await?;
                let newest = of_build.iter().max_by_key(|(_, upload)| upload.stat.czxid);
                if let Some((_, upload)) = newest {
                    uploads.entry(provider).or_insert(upload.value.state);
                }
            }
        }
        Ok(Self {
            builds,
            uploads,
            notes: ImageNotes::read(&**registry.tree(), name).await?,
            requested: images.build_request(name).await?.is_some(),
            paused: images.is_paused(name).await?,
        })
    }

    fn newest(&self, state: BuildState) -> Option<&ImageBuild> {
        let mut builds = self.builds.iter().map(|(_, build)| &build.value);
        builds.find(|build| build.state == state)
    }

    /// Returns the state of the newest build.
    fn state(&self) -> &'static str {
        if self.newest(BuildState::Building).is_some() {
            "building"
        } else if self.newest(BuildState::Ready).is_some() {
            "ready"
        } else if self.requested {
            "requested"
        } else {
            "missing"
        }
    }

    /// Describes problems. Reasons of failures are known only if our own stewards recorded them.
    fn trouble(&self) -> Vec<String> {
        let mut trouble = Vec::new();
        if self.paused {
            trouble.push("paused".to_owned());
        }
        let reason = |subject: &Subject| match self.notes.setbacks.get(subject) {
            Some(setback) => format!(": {}", setback.reason),
            None => String::new(),
        };
        let newest = self.builds.first();
        let failed = newest.is_some_and(|(_, build)| build.value.state == BuildState::Failed);
        if failed || self.notes.setbacks.contains_key(&Subject::Build) {
            trouble.push(format!("build failed{}", reason(&Subject::Build)));
        }
        for (provider, state) in &self.uploads {
            let subject = Subject::Upload {
                provider: provider.clone(),
            };
            if *state == UploadState::Failed || self.notes.setbacks.contains_key(&subject) {
                trouble.push(format!("upload to {provider} failed{}", reason(&subject)));
            }
        }
        trouble
    }
}

/// Returns the entries of images. The age is that of the newest ready build.
pub(super) async fn images(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<RecordEntry>> {
    let mut names = registry.images().names().await?;
    let configured = config.iter().flat_map(|config| config.images.keys());
    names.extend(configured.filter_map(|name| name.parse::<ImageName>().ok()));
    let mut entries = Vec::new();
    for name in names {
        let found = ImageRecords::read(registry, &name).await?;
        let ready = found.newest(BuildState::Ready);
        let uploaded = found.uploads.iter();
        let uploaded: BTreeSet<&str> = uploaded
            .filter(|(_, state)| **state == UploadState::Ready)
            .map(|(provider, _)| provider.as_str())
            .collect();
        entries.push(RecordEntry::new(vec![
            ("name", json!(name.as_str())),
            ("state", json!(found.state())),
            ("builds", json!(found.builds.len())),
            (
                "age",
                ready.map_or(Value::Null, |build| age(build.state_time)),
            ),
            ("uploads", json!(uploaded)),
            ("requested", json!(found.requested)),
            ("paused", json!(found.paused)),
            ("trouble", json!(found.trouble())),
        ]));
    }
    Ok(entries)
}

pub(super) async fn builds(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let images = registry.images();
    let mut entries = Vec::new();
    for name in images.names().await? {
        for (key, build) in images.builds(&name).await? {
            let build = build.value;
            entries.push(RecordEntry::new(vec![
                ("id", json!(build_name(&key))),
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

fn build_name(key: &BuildKey) -> String {
    format!("{}-{}", key.image, key.build)
}

pub(super) async fn uploads(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let mut entries = Vec::new();
    for (key, upload) in all_uploads(registry).await? {
        entries.push(RecordEntry::new(vec![
            ("id", json!(upload_name(&key))),
            ("build", json!(build_name(&key.build))),
            ("image", json!(key.build.image.as_str())),
            ("provider", json!(key.provider.as_str())),
            ("state", json!(upload.state.as_str())),
            ("age", age(upload.state_time)),
            ("external_name", json!(upload.external_name)),
            ("external_id", json!(upload.external_id)),
            ("format", json!(upload.format)),
        ]));
    }
    Ok(entries)
}

/// Returns the name of an upload: build, provider and number.
fn upload_name(key: &UploadKey) -> String {
    format!("{}/{}/{}", build_name(&key.build), key.provider, key.upload)
}

async fn all_uploads(registry: &Registry) -> anyhow::Result<Vec<(UploadKey, ImageUpload)>> {
    let images = registry.images();
    let mut all = Vec::new();
    for name in images.names().await? {
        for (build, _) in images.builds(&name).await? {
            for provider in images.providers(&build).await? {
                let uploads = images.uploads(&build, &provider).await?;
                all.extend(uploads.into_iter().map(|(key, upload)| (key, upload.value)));
            }
        }
    }
    Ok(all)
}
