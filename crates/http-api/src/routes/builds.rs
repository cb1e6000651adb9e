//! Builds of images, and their uploads to providers.

use axum::extract::State;
use nodeyard_model::{
    BuildKey, BuildState, ImageBuild, ImageUpload, ProviderName, UploadId, UploadKey, UploadState,
    now,
};
use nodeyard_operations::images;
use nodeyard_store::registry::{ImageId, ImageRecord, ImageShape};
use nodeyard_store::view::Item;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::images::{AcceptedResponse, operation_problem};
use crate::access::{AdminAccess, ReadAccess, Right};
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::{PathParams, QueryParams};
use crate::page::{ListPage, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::{schema, time};

/// A build of an image.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Build)]
pub(crate) struct ApiBuild {
    #[schema(value_type = schema::BuildIdSchema)]
    id: String,
    image: String,
    #[schema(value_type = schema::BuildStateSchema)]
    state: &'static str,
    /// When it entered this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// The host that built it.
    builder: Option<String>,
    #[schema(examples(json!(["qcow2"])))]
    formats: Vec<String>,
}

/// An upload of a build to a provider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Upload)]
pub(crate) struct ApiUpload {
    /// Counted per build and provider.
    #[schema(value_type = schema::UploadIdSchema)]
    id: String,
    #[schema(value_type = schema::BuildIdSchema)]
    build: String,
    image: String,
    provider: String,
    #[schema(value_type = schema::UploadStateSchema)]
    state: &'static str,
    /// When it entered this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// The provider's id of the image.
    external_id: Option<String>,
    external_name: Option<String>,
    format: Option<String>,
}

fn name_of(key: &BuildKey) -> String {
    format!("{}-{}", key.image, key.build)
}

impl ApiBuild {
    fn of(key: &BuildKey, build: &ImageBuild) -> Self {
        Self {
            id: name_of(key),
            image: key.image.to_string(),
            state: build.state.as_str(),
            since: time::shown(build.state_time),
            builder: build.builder.as_deref().map(str::to_owned),
            formats: build.formats.iter().map(str::to_owned).collect(),
        }
    }
}

impl ApiUpload {
    fn of(key: &UploadKey, upload: &ImageUpload) -> Self {
        Self {
            id: key.upload.to_string(),
            build: name_of(&key.build),
            image: key.build.image.to_string(),
            provider: key.provider.to_string(),
            state: upload.state.as_str(),
            since: time::shown(upload.state_time),
            external_id: upload.external_id.as_deref().map(str::to_owned),
            external_name: upload.external_name.as_deref().map(str::to_owned),
            format: upload.format.as_deref().map(str::to_owned),
        }
    }
}

/// Which builds to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuildQuery {
    /// Only of this image.
    image: Option<String>,
    /// Only in this state.
    #[param(value_type = Option<schema::BuildStateSchema>)]
    state: Option<BuildState>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
    cursor: Option<String>,
}

/// List builds
#[utoipa::path(
    get, path = "/builds", tag = "images", params(BuildQuery),
    responses((status = 200, description = "Builds, in the order of their ids.", body = ListPage<ApiBuild>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_builds(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<BuildQuery>,
) -> Result<JsonResponse<ListPage<ApiBuild>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.images.for_each(|item| {
        if let (ImageId::Build(key), ImageRecord::Build(build)) = (&item.id, &*item.value) {
            let image = query.image.as_deref();
            let image = image.is_none_or(|image| image == key.image.as_str());
            let state = query.state.is_none_or(|state| state == build.state);
            if image && state {
                found.push((name_of(key), ApiBuild::of(key, build)));
            }
        }
    });
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(JsonResponse::ok(pagination.page(found)))
}

/// Show a build
#[utoipa::path(
    get, path = "/builds/{id}", tag = "images",
    params(("id" = schema::BuildIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "The build.", body = ApiBuild)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_build(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ApiBuild>> {
    let key = key(&id)?;
    let found = app.views.images.get(&ImageId::Build(key.clone()));
    match found.as_ref().map(|item| &*item.value) {
        Some(ImageRecord::Build(build)) => Ok(JsonResponse::ok(ApiBuild::of(&key, build))),
        _ => Err(no_build(&id)),
    }
}

fn no_build(id: &str) -> ApiProblem {
    ApiProblem::not_found(format!("no build {id:?}"))
}

fn key(id: &str) -> Result<BuildKey> {
    images::parse_build(id).ok_or_else(|| no_build(id))
}

/// Delete a build
///
/// Its files and its uploads are deleted by the builders.
#[utoipa::path(
    delete, path = "/builds/{id}", tag = "images",
    params(("id" = schema::BuildIdSchema, Path, description = "Its id.")),
    responses(
        (status = 202, description = "It will be deleted.", body = AcceptedResponse),
        (status = 409, description = "It is being built.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["admin"])),
)]
pub(crate) async fn delete_build(
    State(app): State<ApiState>,
    AdminAccess(caller): AdminAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<AcceptedResponse>> {
    caller.require_all_tenants(Right::Admin)?;
    let key = key(&id)?;
    let deleted = images::delete_build(&app.registry, &key, now()).await;
    deleted.map_err(|error| operation_problem("build", error))?;
    Ok(AcceptedResponse::response(format!(
        "the builders will delete {id}"
    )))
}

/// Which uploads to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct UploadQuery {
    /// Only of this image.
    image: Option<String>,
    /// Only to this provider.
    provider: Option<String>,
    /// Only in this state.
    #[param(value_type = Option<schema::UploadStateSchema>)]
    state: Option<UploadState>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
    cursor: Option<String>,
}

/// List uploads
#[utoipa::path(
    get, path = "/uploads", tag = "images", params(UploadQuery),
    responses((status = 200, description = "Uploads, by build, provider and id.", body = ListPage<ApiUpload>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_uploads(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<UploadQuery>,
) -> Result<JsonResponse<ListPage<ApiUpload>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.images.for_each(|item| {
        if let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value) {
            let image = query.image.as_deref();
            let image = image.is_none_or(|image| image == key.build.image.as_str());
            let provider = query.provider.as_deref();
            let provider = provider.is_none_or(|provider| provider == key.provider.as_str());
            let state = query.state.is_none_or(|state| state == upload.state);
            if image && provider && state {
                found.push((upload_name(key), ApiUpload::of(key, upload)));
            }
        }
    });
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(JsonResponse::ok(pagination.page(found)))
}

/// Returns the id of an upload, as in its path.
fn upload_name(key: &UploadKey) -> String {
    format!("{}/{}/{}", name_of(&key.build), key.provider, key.upload)
}

fn upload_key(build: &str, provider: &str, upload: &str) -> Result<UploadKey> {
    let not_found = || {
        ApiProblem::not_found(format!(
            "no upload {upload:?} of build {build:?} to provider {provider:?}"
        ))
    };
    Ok(UploadKey {
        build: images::parse_build(build).ok_or_else(not_found)?,
        provider: provider
            .parse::<ProviderName>()
            .ok()
            .ok_or_else(not_found)?,
        upload: upload.parse::<UploadId>().ok().ok_or_else(not_found)?,
    })
}

/// Show an upload
#[utoipa::path(
    get, path = "/uploads/{build}/{provider}/{id}", tag = "images",
    params(
        ("build" = schema::BuildIdSchema, Path, description = "The build."),
        ("provider" = String, Path, description = "The provider."),
        ("id" = schema::UploadIdSchema, Path, description = "Its id."),
    ),
    responses((status = 200, description = "The upload.", body = ApiUpload)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_upload(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams((build, provider, id)): PathParams<(String, String, String)>,
) -> Result<JsonResponse<ApiUpload>> {
    let key = upload_key(&build, &provider, &id)?;
    let found = app.views.images.get(&ImageId::Upload(key.clone()));
    match found.as_ref().map(|item| &*item.value) {
        Some(ImageRecord::Upload(upload)) => Ok(JsonResponse::ok(ApiUpload::of(&key, upload))),
        _ => Err(ApiProblem::not_found("no such upload")),
    }
}

/// Delete an upload from its provider
#[utoipa::path(
    delete, path = "/uploads/{build}/{provider}/{id}", tag = "images",
    params(
        ("build" = schema::BuildIdSchema, Path, description = "The build."),
        ("provider" = String, Path, description = "The provider."),
        ("id" = schema::UploadIdSchema, Path, description = "Its id."),
    ),
    responses(
        (status = 202, description = "It will be deleted.", body = AcceptedResponse),
        (status = 409, description = "It is being uploaded.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["admin"])),
)]
pub(crate) async fn delete_upload(
    State(app): State<ApiState>,
    AdminAccess(caller): AdminAccess,
    PathParams((build, provider, id)): PathParams<(String, String, String)>,
) -> Result<JsonResponse<AcceptedResponse>> {
    caller.require_all_tenants(Right::Admin)?;
    let key = upload_key(&build, &provider, &id)?;
    let deleted = images::delete_upload(&app.registry, &key, now()).await;
    deleted.map_err(|error| operation_problem("upload", error))?;
    Ok(AcceptedResponse::response(
        "the builders will delete the upload",
    ))
}

/// Renders a build or an upload as an event.
pub(crate) fn to_event(item: &Item<ImageShape>) -> Option<(EventSubject, String)> {
    let (subject, image, json) = match (&item.id, &*item.value) {
        (ImageId::Build(key), ImageRecord::Build(build)) => (
            EventSubject::new(ObjectKind::Build, name_of(key)),
            &key.image,
            serde_json::to_string(&ApiBuild::of(key, build)).ok()?,
        ),
        (ImageId::Upload(key), ImageRecord::Upload(upload)) => (
            EventSubject::new(ObjectKind::Upload, upload_name(key)),
            &key.build.image,
            serde_json::to_string(&ApiUpload::of(key, upload)).ok()?,
        ),
        _ => return None,
    };
    let related = [image.as_str().into()].into();
    Some((EventSubject { related, ..subject }, json))
}
