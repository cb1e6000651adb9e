//! Images: what there are, and what is asked of them.

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_api::MarkShape;
use nodeyard_model::ImageName;
use nodeyard_operations::{Error, images};
use nodeyard_store::view::{Changes, Shape, View};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Operator, Reader, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Follow, Kind, Subject};
use crate::extract::{Named, Query};
use crate::page::{Page, PageQuery, Place};
use crate::problem::Problem;
use crate::time;

/// An image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Image {
    #[schema(examples("debian"))]
    name: String,
    /// It is kept from being built.
    paused: bool,
    /// When a build was asked for that is not there yet.
    #[schema(format = DateTime)]
    asked: Option<String>,
    /// Somebody is at work on the build that was asked for.
    building: bool,
}

impl From<nodeyard_api::ImageRow> for Image {
    fn from(row: nodeyard_api::ImageRow) -> Self {
        let asked = row.request.map(|request| request.asked);
        Self {
            name: row.image.to_string(),
            paused: row.paused,
            asked: asked.and_then(time::shown),
            building: row.request.is_some_and(|request| request.building),
        }
    }
}

/// List images
#[utoipa::path(
    get, path = "/images", tag = "images", params(PageQuery),
    responses((status = 200, description = "Images, in the order of their names.", body = Page<Image>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_images(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Image>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let rows = all(&app).into_iter();
    let rows = rows.map(|row| (row.image.clone(), Image::from(row)));
    Ok(Answer::ok(place.fill(rows)))
}

/// Those that are known, and those that are configured and nobody has touched yet.
fn all(app: &App) -> Vec<nodeyard_api::ImageRow> {
    let mut rows: Vec<_> = nodeyard_api::image_rows(&app.views.marks).collect();
    let config = app.config();
    for name in config.images.keys() {
        let Ok(image) = ImageName::new(name.as_str()) else {
            continue;
        };
        if rows.iter().all(|row| row.image != image) {
            rows.push(nodeyard_api::ImageRow {
                image,
                paused: false,
                request: None,
            });
        }
    }
    rows.sort_by(|a, b| a.image.cmp(&b.image));
    rows
}

/// Show an image
#[utoipa::path(
    get, path = "/images/{image}", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The image.", body = Image)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_image(
    State(app): State<App>,
    Reader(_): Reader,
    Named(name): Named<String>,
) -> Result<Answer<Image>> {
    let row = all(&app).into_iter().find(|row| row.image.as_str() == name);
    let row = row.ok_or_else(|| no_image(&name))?;
    Ok(Answer::ok(row.into()))
}

fn no_image(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no image {name:?}, neither in the configuration nor in the store"
    ))
}

fn known(app: &App, name: &str) -> Result<ImageName> {
    let row = all(app).into_iter().find(|row| row.image.as_str() == name);
    row.map(|row| row.image).ok_or_else(|| no_image(name))
}

/// What was asked for has been written down; whoever does it does so when they can.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    /// What will happen.
    #[schema(examples("a builder will build debian"))]
    detail: String,
}

impl Accepted {
    pub(super) fn answer(detail: impl Into<String>) -> Answer<Self> {
        let detail = detail.into();
        Answer(StatusCode::ACCEPTED, Self { detail })
    }
}

/// Ask for a build of an image
///
/// Builders see it until one of them has built the image. Asking twice is asking once.
#[utoipa::path(
    post, path = "/images/{image}/builds", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses(
        (status = 202, description = "It was asked for.", body = Accepted),
        (status = 409, description = "Nobody would build it.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn build_image(
    State(app): State<App>,
    Operator(caller): Operator,
    Named(name): Named<String>,
) -> Result<Answer<Accepted>> {
    caller.concerns_everybody(Right::Operate)?;
    let image = known(&app, &name)?;
    match images::request_build(&app.registry, Some(&*app.config()), &image).await {
        Ok(()) => Ok(Accepted::answer(format!("a builder will build {image}"))),
        Err(error @ (Error::NotConfigured | Error::PausedByConfiguration)) => {
            Err(Problem::conflict(format!("image {image}: {error}")))
        }
        Err(error) => Err(problem("image", error)),
    }
}

/// Keep an image from being built and uploaded
#[utoipa::path(
    put, path = "/images/{image}/pause", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "It is paused.", body = Image),
        (status = 409, description = "Nothing is known of it yet.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn pause_image(
    State(app): State<App>,
    Operator(caller): Operator,
    Named(name): Named<String>,
) -> Result<Answer<Image>> {
    caller.concerns_everybody(Right::Operate)?;
    let image = known(&app, &name)?;
    match images::pause(&app.registry, &image).await {
        Ok(()) => after(&app, &image).await,
        Err(Error::Unheard) => Err(Problem::conflict(format!(
            "image {image} cannot be paused before something is known of it; ask for a build first"
        ))),
        Err(error) => Err(problem("image", error)),
    }
}

/// Take a pause back
#[utoipa::path(
    delete, path = "/images/{image}/pause", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses((status = 200, description = "It is not paused.", body = Image)),
    security(("token" = ["operate"])),
)]
pub(crate) async fn unpause_image(
    State(app): State<App>,
    Operator(caller): Operator,
    Named(name): Named<String>,
) -> Result<Answer<Image>> {
    caller.concerns_everybody(Right::Operate)?;
    let image = known(&app, &name)?;
    let unpaused = images::unpause(&app.registry, &image).await;
    unpaused.map_err(|error| problem("image", error))?;
    after(&app, &image).await
}

/// The image, with the change that was just made.
async fn after(app: &App, image: &ImageName) -> Result<Answer<Image>> {
    app.views.marks.synced().await?;
    let row = all(app).into_iter().find(|row| row.image == *image);
    let row = row.ok_or_else(|| no_image(image.as_str()))?;
    Ok(Answer::ok(row.into()))
}

/// Why nothing was done to a thing of this kind.
pub(super) fn problem(what: &str, error: Error) -> Problem {
    match error {
        Error::Gone => Problem::not_found(format!("the {what} is not there")),
        Error::Store(error) => error.into(),
        other => Problem::conflict(format!("the {what} cannot be changed: {other}")),
    }
}

/// Images, as events tell of them: several records make one.
pub(crate) struct ImageFeed(pub(crate) View<MarkShape>);

#[async_trait]
impl Follow for ImageFeed {
    type Id = <MarkShape as Shape>::Id;
    type Key = ImageName;

    fn changes(&self) -> Changes<Self::Id> {
        self.0.changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.0.synced().await
    }

    fn key(&self, mark: &nodeyard_api::Mark) -> ImageName {
        mark.image().clone()
    }

    fn show(&self, image: &ImageName) -> Option<(Subject, String)> {
        let row = nodeyard_api::image_rows(&self.0).find(|row| row.image == *image)?;
        let json = serde_json::to_string(&Image::from(row)).ok()?;
        Some((Subject::new(Kind::Image, image.as_str()), json))
    }

    fn keys(&self) -> Vec<ImageName> {
        nodeyard_api::image_rows(&self.0)
            .map(|row| row.image)
            .collect()
    }
}
