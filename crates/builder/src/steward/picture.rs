//! Draws the picture of an image for the plan.

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

use super::functions::Functions;
use super::notes::{BuildNotes, Notes};
use super::policy;
use super::zuul::read_market;

/// The picture of an image as it is now: nothing that was written before the call is missing from it.
pub async fn draw(
    registry: &Registry,
    config: &Config,
    functions: &Functions,
    image: &ImageName,
) -> Result<ImageState> {
    let tree = &**registry.tree();
    tree.sync().await?;
    let notes = Notes::read(tree, image).await?;
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

/// All images of the configuration, and all that there are records of.
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

/// None for what has no data, or none that can be read: it is left alone.
async fn build(
    tree: &dyn Tree,
    key: BuildKey,
    record: &Record,
    notes: &Notes,
) -> Result<Option<(BuildId, BuildSnapshot)>> {
    let place = path(layout::build(&key))?;
    let Some(value) = readable(&place, record, ImageBuild::from_json) else {
        return Ok(None);
    };
    let below = children(tree, &place).await?;
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
        let place = dir.join(&name)?;
        let Some(value) = readable(&place, &record, ImageUpload::from_json) else {
            if !record.data.is_empty() {
                build.unreadable += 1;
            }
            continue;
        };
        let lock = place.join(layout::LOCK)?;
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
    place: &TreePath,
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
            tracing::warn!(path = %place, error, "malformed record left alone");
            None
        }
    }
}

/// Somebody holds the lock or waits for it.
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

/// The builds that there are records of, readable or not.
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
