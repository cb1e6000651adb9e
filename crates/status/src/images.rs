//! The lists of builds, uploads and images: as tables from rows (`*_table`), and read from the store.

use nodeyard_model::{BuildKey, ImageBuild, ImageName, ImageUpload, Timestamp, UploadKey};
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;

use crate::table::{Cell, RecordTable};

/// A build record, and whether its image is paused.
#[derive(Debug)]
pub struct BuildRow<'a> {
    pub key: &'a BuildKey,
    pub build: &'a ImageBuild,
    pub paused: bool,
}

pub fn build_table<'a>(
    rows: impl IntoIterator<Item = BuildRow<'a>>,
    now: Timestamp,
) -> RecordTable {
    let rows = rows.into_iter().map(|BuildRow { key, build, paused }| {
        vec![
            Cell::text(format_args!("{}-{}", key.image, key.build)),
            Cell::text(&key.image),
            Cell::from(build.builder.as_deref()),
            Cell::List(build.formats.iter().map(str::to_owned).collect()),
            Cell::text(if paused {
                "paused"
            } else {
                build.state.as_str()
            }),
            Cell::Since(build.state_time),
        ]
    });
    let columns = &[
        ("id", "ID"),
        ("image", "Image"),
        ("builder", "Builder"),
        ("formats", "Formats"),
        ("state", "State"),
        ("age", "Age"),
    ];
    RecordTable::new(columns, rows.collect(), now)
}

pub fn upload_table<'a>(
    rows: impl IntoIterator<Item = (&'a UploadKey, &'a ImageUpload)>,
    now: Timestamp,
) -> RecordTable {
    let rows = rows.into_iter().map(|(key, upload)| {
        vec![
            Cell::text(key.build.build),
            Cell::text(key.upload),
            Cell::text(&key.provider),
            Cell::text(&key.build.image),
            Cell::from(upload.external_name.as_deref()),
            Cell::from(upload.external_id.as_deref()),
            Cell::text(upload.state.as_str()),
            Cell::Since(upload.state_time),
        ]
    });
    let columns = &[
        ("id", "Build ID"),
        ("upload_id", "Upload ID"),
        ("provider", "Provider"),
        ("image", "Image"),
        ("external_name", "Provider Image Name"),
        ("external_id", "Provider Image ID"),
        ("state", "State"),
        ("age", "Age"),
    ];
    RecordTable::new(columns, rows.collect(), now)
}

/// The pause and the build request of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRow {
    pub image: ImageName,
    pub paused: bool,
    pub request: Option<BuildRequest>,
}

/// An outstanding request to build an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildRequest {
    pub requested_at: Timestamp,
    pub building: bool,
}

pub fn image_table(rows: impl IntoIterator<Item = ImageRow>, now: Timestamp) -> RecordTable {
    let rows = rows.into_iter().map(|row| {
        let state = row.request.map(|request| match request.building {
            true => "building",
            false => "pending",
        });
        let requested_at = row.request.map(|request| request.requested_at);
        vec![
            Cell::text(&row.image),
            Cell::Flag(row.paused),
            Cell::from(state),
            requested_at.map_or(Cell::Null, Cell::Since),
        ]
    });
    let columns = &[
        ("image", "Image"),
        ("paused", "Paused"),
        ("build_request", "Build Request"),
        ("build_request_age", "Build Request Age"),
    ];
    RecordTable::new(columns, rows.collect(), now)
}

pub async fn builds(registry: &Registry, now: Timestamp) -> Result<RecordTable> {
    let images = registry.images();
    let mut found = Vec::new();
    for image in images.names().await? {
        let paused = images.is_paused(&image).await?;
        let builds = images.builds(&image).await?;
        found.extend(builds.into_iter().map(|(key, build)| (key, build, paused)));
    }
    let rows = found.iter().map(|(key, build, paused)| BuildRow {
        key,
        build: &build.value,
        paused: *paused,
    });
    Ok(build_table(rows, now))
}

pub async fn uploads(registry: &Registry, now: Timestamp) -> Result<RecordTable> {
    let images = registry.images();
    let mut found = Vec::new();
    for image in images.names().await? {
        for (build, _) in images.builds(&image).await? {
            for provider in images.providers(&build).await? {
                found.extend(images.uploads(&build, &provider).await?);
            }
        }
    }
    let rows = found.iter().map(|(key, upload)| (key, &upload.value));
    Ok(upload_table(rows, now))
}

pub async fn image_status(registry: &Registry, now: Timestamp) -> Result<RecordTable> {
    let images = registry.images();
    let mut rows = Vec::new();
    for image in images.names().await? {
        let request = match images.build_request(&image).await? {
            None => None,
            Some(stat) => Some(BuildRequest {
                requested_at: Timestamp::from_millis(stat.ctime),
                building: is_building(registry, &image).await?,
            }),
        };
        rows.push(ImageRow {
            paused: images.is_paused(&image).await?,
            image,
            request,
        });
    }
    Ok(image_table(rows, now))
}

/// Returns whether an image is being built: a builder holds the lock of the image's builds meanwhile.
async fn is_building(registry: &Registry, image: &ImageName) -> Result<bool> {
    let lock = registry.images().building_lock(image)?;
    Ok(!lock.contenders().await?.is_empty())
}
