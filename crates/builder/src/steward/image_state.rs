//! Loads the state of an image for the plan.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;
use nodeyard_config::Config;
use nodeyard_model::{
    BuildId, BuildKey, ImageBuild, ImageName, ImageUpload, ProviderName, Record as _, Timestamp,
    layout,
};
use nodeyard_plan::images::{
    BuildSnapshot, ImageBuildRequest, ImageState, UploadSnapshot, ZuulSource,
};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Error, Record, Result, Stat, Tree, TreePath, ext};

use super::functions::RegisteredFunctions;
use super::notes::{BuildNotes, ImageNotes};
use super::policy;
use super::zuul::read_market;

/// Loads the current state of an image, including everything written before the call.
pub async fn load_image_state(
    registry: &Registry,
    config: &Config,
    functions: &RegisteredFunctions,
    image: &ImageName,
) -> Result<ImageState> {
    let tree = &**registry.tree();
    tree.sync().await?;
    let notes = ImageNotes::read(tree, image).await?;
    let market = read_market(tree, image).await?;
    let canary = TreePath::new(layout::image_canary(image))?;
    let canary = ext::read_json(tree, &canary).await?.unwrap_or_default();
    let flags = children(tree, &path(layout::image(image))?).await?;
    let flag = |name: &str| flags.get(name).map(|record| record.stat);
    let records = children(tree, &path(layout::builds(image))?).await?;
    let building = records.get(layout::LOCK).is_some_and(is_held);
    let builds = records.iter().filter_map(|(name, record)| {
        let key = BuildKey {
            image: image.clone(),
            build: name.parse().ok()?,
        };
        Some(build(tree, key, record, &notes))
    });
    let builds: BTreeMap<BuildId, BuildSnapshot> =
        try_join_all(builds).await?.into_iter().flatten().collect();
    let providers = policy::providers(config, image);
    Ok(ImageState {
        image: image.clone(),
        policy: policy::image(config, image),
        services: functions.services(image, builds.keys(), providers.keys()),
        providers,
        builds,
        paused: flag("pause").is_some(),
        request: flag("request-build").map(|stat| request(&stat)),
        building,
        backoffs: notes.setbacks,
        durations: notes.durations,
        zuul_builds: market,
        canary,
    })
}

/// Returns the images that have a configuration or records.
pub async fn known_images(registry: &Registry, config: &Config) -> Result<BTreeSet<ImageName>> {
    let mut names = registry.images().names().await?;
    let configured = config.images.keys();
    names.extend(configured.filter_map(|name| name.parse::<ImageName>().ok()));
    Ok(names)
}

fn request(stat: &Stat) -> ImageBuildRequest {
    ImageBuildRequest {
        made: Timestamp::from_millis(stat.ctime),
        order: stat.czxid,
    }
}

/// Loads a build. Returns `None` for a record without data or with malformed data.
async fn build(
    tree: &dyn Tree,
    key: BuildKey,
    record: &Record,
    notes: &ImageNotes,
) -> Result<Option<(BuildId, BuildSnapshot)>> {
    let record_path = path(layout::build(&key))?;
    let Some(value) = readable(&record_path, record, ImageBuild::from_json) else {
        return Ok(None);
    };
    let below = children(tree, &record_path).await?;
    let known = notes.builds.get(&key.build);
    let known = known.cloned().unwrap_or_default();
    let BuildNotes { asked, dropped, .. } = known;
    let mut build = BuildSnapshot {
        state: value.state,
        since: value.state_time,
        order: record.stat.czxid,
        formats: value.formats,
        zuul: value.zuul_build_uuid.map(|uuid| ZuulSource {
            uuid,
            end: value.zuul_end_time,
        }),
        asked,
        dropped,
        locked: below.get(layout::LOCK).is_some_and(is_held),
        uploading: BTreeSet::new(),
        uploads: BTreeMap::new(),
        unreadable: 0,
    };
    for name in ext::child_names(tree, &path(layout::build_providers(&key))?).await? {
        if let Ok(provider) = name.parse() {
            uploads(tree, &key, &provider, &mut build).await?;
        }
    }
    Ok(Some((key.build, build)))
}

async fn uploads(
    tree: &dyn Tree,
    key: &BuildKey,
    provider: &ProviderName,
    build: &mut BuildSnapshot,
) -> Result<()> {
    let dir = path(layout::uploads(key, provider))?;
    for (name, record) in children(tree, &dir).await? {
        if name == layout::LOCK {
            if is_held(&record) {
                build.uploading.insert(provider.clone());
            }
            continue;
        }
        let Ok(id) = name.parse() else { continue };
        let record_path = dir.join(&name)?;
        let Some(value) = readable(&record_path, &record, ImageUpload::from_json) else {
            if !record.data.is_empty() {
                build.unreadable += 1;
            }
            continue;
        };
        let lock = record_path.join(layout::LOCK)?;
        let locked =
            record.stat.num_children > 0 && !ext::child_names(tree, &lock).await?.is_empty();
        let upload = UploadSnapshot {
            state: value.state,
            since: value.state_time,
            format: value.format,
            locked,
        };
        build.uploads.insert((provider.clone(), id), upload);
    }
    Ok(())
}

fn readable<T>(
    record_path: &TreePath,
    record: &Record,
    parse: fn(&[u8]) -> Result<T, nodeyard_model::RecordError>,
) -> Option<T> {
    if record.data.is_empty() {
        return None;
    }
    match parse(&record.data) {
        Ok(value) => Some(value),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(path = %record_path, error, "failed to parse record; ignoring it");
            None
        }
    }
}

/// Returns whether a process holds the lock or waits for it.
fn is_held(lock: &Record) -> bool {
    lock.stat.num_children > 0
}

async fn children(tree: &dyn Tree, dir: &TreePath) -> Result<BTreeMap<String, Record>> {
    match tree.list(dir).await {
        Ok(children) => Ok(children.into_iter().collect()),
        Err(Error::NoNode { .. }) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn path(text: String) -> Result<TreePath> {
    Ok(TreePath::new(text)?)
}

/// Returns all builds with a record, including malformed ones.
pub(super) async fn recorded_builds(registry: &Registry) -> Result<BTreeSet<BuildId>> {
    let tree = &**registry.tree();
    let images = registry.images().names().await?;
    let names = images.iter().map(|image| async move {
        let dir = path(layout::builds(image))?;
        ext::child_names(tree, &dir).await
    });
    let names = try_join_all(names).await?;
    let names = names.iter().flatten();
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}
