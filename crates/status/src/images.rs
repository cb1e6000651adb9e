//! The lists of builds, uploads, and what is asked of images. All read the store.

use nodeyard_model::{ImageName, Timestamp};
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;

use crate::table::{Cell, Table};

pub async fn builds(registry: &Registry, now: Timestamp) -> Result<Table> {
    let images = registry.images();
    let mut rows = Vec::new();
    for image in images.names().await? {
        let paused = images.is_paused(&image).await?;
        for (key, build) in images.builds(&image).await? {
            let build = build.value;
            rows.push(vec![
                Cell::text(format_args!("{image}-{}", key.build)),
                Cell::text(&image),
                Cell::from(build.builder.as_deref()),
                Cell::List(build.formats.iter().map(str::to_owned).collect()),
                Cell::text(if paused {
                    "paused"
                } else {
                    build.state.as_str()
                }),
                Cell::Since(build.state_time),
            ]);
        }
    }
    let columns = &[
        ("id", "ID"),
        ("image", "Image"),
        ("builder", "Builder"),
        ("formats", "Formats"),
        ("state", "State"),
        ("age", "Age"),
    ];
    Ok(Table::new(columns, rows, now))
}

pub async fn uploads(registry: &Registry, now: Timestamp) -> Result<Table> {
    let images = registry.images();
    let mut rows = Vec::new();
    for image in images.names().await? {
        for (build, _) in images.builds(&image).await? {
            for provider in images.providers(&build).await? {
                for (key, upload) in images.uploads(&build, &provider).await? {
                    let upload = upload.value;
                    rows.push(vec![
                        Cell::text(build.build),
                        Cell::text(key.upload),
                        Cell::text(&provider),
                        Cell::text(&image),
                        Cell::from(upload.external_name.as_deref()),
                        Cell::from(upload.external_id.as_deref()),
                        Cell::text(upload.state.as_str()),
                        Cell::Since(upload.state_time),
                    ]);
                }
            }
        }
    }
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
    Ok(Table::new(columns, rows, now))
}

pub async fn image_status(registry: &Registry, now: Timestamp) -> Result<Table> {
    let images = registry.images();
    let mut rows = Vec::new();
    for image in images.names().await? {
        let request = images.build_request(&image).await?;
        let state = match &request {
            None => Cell::Null,
            Some(_) if is_building(registry, &image).await? => Cell::text("building"),
            Some(_) => Cell::text("pending"),
        };
        let asked = request.and_then(|stat| Timestamp::from_secs(stat.ctime as f64 / 1000.0));
        rows.push(vec![
            Cell::text(&image),
            Cell::Flag(images.is_paused(&image).await?),
            state,
            asked.map_or(Cell::Null, Cell::Since),
        ]);
    }
    let columns = &[
        ("image", "Image"),
        ("paused", "Paused"),
        ("build_request", "Build Request"),
        ("build_request_age", "Build Request Age"),
    ];
    Ok(Table::new(columns, rows, now))
}

/// A builder holds the image's lock while it builds.
async fn is_building(registry: &Registry, image: &ImageName) -> Result<bool> {
    let lock = registry.images().building_lock(image)?;
    Ok(!lock.contenders().await?.is_empty())
}
