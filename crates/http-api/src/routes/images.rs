//! Images: list, build, pause.

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_api::ImageMarkerShape;
use nodeyard_model::ImageName;
use nodeyard_operations::{Error, images};
use nodeyard_store::view::{Changes, Shape, View};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{OperateAccess, ReadAccess, Right};
use crate::app::ApiState;
use crate::events::{EventSource, EventSubject, ObjectKind};
use crate::extract::{PathParams, QueryParams};
use crate::page::{ListPage, PageQuery, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::time;

/// An image.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Image)]
pub(crate) struct ApiImage {
    #[schema(examples("debian"))]
    name: String,
    /// Builds of the image are paused.
    paused: bool,
    /// When the outstanding build was requested.
    #[schema(format = DateTime)]
    asked: Option<String>,
    /// The requested build is in progress.
    building: bool,
}

impl From<nodeyard_api::ImageRow> for ApiImage {
    fn from(row: nodeyard_api::ImageRow) -> Self {
        let asked = row.request.map(|request| request.requested_at);
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
    responses((status = 200, description = "Images, in the order of their names.", body = ListPage<ApiImage>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_images(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiImage>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let rows = all(&app).into_iter();
    let rows = rows.map(|row| (row.image.clone(), ApiImage::from(row)));
    Ok(JsonResponse::ok(pagination.page(rows)))
}

/// Returns the images in the store and those in the configuration.
fn all(app: &ApiState) -> Vec<nodeyard_api::ImageRow> {
    let mut rows: Vec<_> = nodeyard_api::image_rows(&app.views.image_markers).collect();
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
    responses((status = 200, description = "The image.", body = ApiImage)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_image(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<ApiImage>> {
    let row = all(&app).into_iter().find(|row| row.image.as_str() == name);
    let row = row.ok_or_else(|| no_image(&name))?;
    Ok(JsonResponse::ok(row.into()))
}

fn no_image(name: &str) -> ApiProblem {
    ApiProblem::not_found(format!(
        "no image {name:?} in the configuration or in the store"
    ))
}

fn known(app: &ApiState, name: &str) -> Result<ImageName> {
    let row = all(app).into_iter().find(|row| row.image.as_str() == name);
    row.map(|row| row.image).ok_or_else(|| no_image(name))
}

/// An accepted change that a launcher or builder will carry out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Accepted)]
pub(crate) struct AcceptedResponse {
    /// What will happen.
    #[schema(examples("a builder will build debian"))]
    detail: String,
}

impl AcceptedResponse {
    pub(super) fn response(detail: impl Into<String>) -> JsonResponse<Self> {
        let detail = detail.into();
        JsonResponse(StatusCode::ACCEPTED, Self { detail })
    }
}

/// Request a build of an image
///
/// The request stays until a builder has built the image. Repeating it has no effect.
#[utoipa::path(
    post, path = "/images/{image}/builds", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses(
        (status = 202, description = "The build is requested.", body = AcceptedResponse),
        (status = 409, description = "No builder would build it.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn build_image(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<AcceptedResponse>> {
    caller.require_all_tenants(Right::Operate)?;
    let image = known(&app, &name)?;
    match images::request_build(&app.registry, Some(&*app.config()), &image).await {
        Ok(()) => Ok(AcceptedResponse::response(format!(
            "a builder will build {image}"
        ))),
        Err(error @ (Error::NotConfigured | Error::PausedByConfiguration)) => {
            Err(ApiProblem::conflict(format!("image {image}: {error}")))
        }
        Err(error) => Err(operation_problem("image", error)),
    }
}

/// Pause builds and uploads of an image
#[utoipa::path(
    put, path = "/images/{image}/pause", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses(
        (status = 200, description = "It is paused.", body = ApiImage),
        (status = 409, description = "No builder has registered it yet.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn pause_image(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<ApiImage>> {
    caller.require_all_tenants(Right::Operate)?;
    let image = known(&app, &name)?;
    match images::pause(&app.registry, &image).await {
        Ok(()) => after(&app, &image).await,
        Err(Error::UnknownImage) => Err(ApiProblem::conflict(format!(
            "image {image} cannot be paused before a builder has registered it; request a build first"
        ))),
        Err(error) => Err(operation_problem("image", error)),
    }
}

/// End the pause of an image
#[utoipa::path(
    delete, path = "/images/{image}/pause", tag = "images", params(("image" = String, Path, description = "Its name.")),
    responses((status = 200, description = "It is not paused.", body = ApiImage)),
    security(("token" = ["operate"])),
)]
pub(crate) async fn unpause_image(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<ApiImage>> {
    caller.require_all_tenants(Right::Operate)?;
    let image = known(&app, &name)?;
    let unpaused = images::unpause(&app.registry, &image).await;
    unpaused.map_err(|error| operation_problem("image", error))?;
    after(&app, &image).await
}

/// Returns the image with the change that was just made.
async fn after(app: &ApiState, image: &ImageName) -> Result<JsonResponse<ApiImage>> {
    app.views.image_markers.synced().await?;
    let row = all(app).into_iter().find(|row| row.image == *image);
    let row = row.ok_or_else(|| no_image(image.as_str()))?;
    Ok(JsonResponse::ok(row.into()))
}

/// Maps an error of an operation on an object of this kind.
pub(super) fn operation_problem(what: &str, error: Error) -> ApiProblem {
    match error {
        Error::Gone => ApiProblem::not_found(format!("the {what} does not exist")),
        Error::Store(error) => error.into(),
        other => ApiProblem::conflict(format!("failed to change the {what}: {other}")),
    }
}

/// The source of events about images, each of which is made up of several records.
pub(crate) struct ImageEventSource(pub(crate) View<ImageMarkerShape>);

#[async_trait]
impl EventSource for ImageEventSource {
    type Id = <ImageMarkerShape as Shape>::Id;
    type Key = ImageName;

    fn changes(&self) -> Changes<Self::Id> {
        self.0.changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.0.synced().await
    }

    fn key(&self, mark: &nodeyard_api::ImageMarker) -> ImageName {
        mark.image().clone()
    }

    fn show(&self, image: &ImageName) -> Option<(EventSubject, String)> {
        let row = nodeyard_api::image_rows(&self.0).find(|row| row.image == *image)?;
        let json = serde_json::to_string(&ApiImage::from(row)).ok()?;
        Some((EventSubject::new(ObjectKind::Image, image.as_str()), json))
    }

    fn keys(&self) -> Vec<ImageName> {
        nodeyard_api::image_rows(&self.0)
            .map(|row| row.image)
            .collect()
    }
}
