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

use super::images::{Accepted, problem};
use crate::access::{Admin, Reader, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::{Named, Query};
use crate::page::{Page, Place};
use crate::problem::Problem;
use crate::{schema, time};

/// A build of an image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Build {
    #[schema(value_type = schema::BuildId)]
    id: String,
    image: String,
    #[schema(value_type = schema::BuildState)]
    state: &'static str,
    /// Since when it is in this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// The host that built it.
    builder: Option<String>,
    #[schema(examples(json!(["qcow2"])))]
    formats: Vec<String>,
}

/// An upload of a build to a provider.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Upload {
    /// Counted per build and provider.
    #[schema(value_type = schema::UploadId)]
    id: String,
    #[schema(value_type = schema::BuildId)]
    build: String,
    image: String,
    provider: String,
    #[schema(value_type = schema::UploadState)]
    state: &'static str,
    /// Since when it is in this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// How the provider calls it.
    external_id: Option<String>,
    external_name: Option<String>,
    format: Option<String>,
}

fn name_of(key: &BuildKey) -> String {
    format!("{}-{}", key.image, key.build)
}

impl Build {
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

impl Upload {
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
    #[param(value_type = Option<schema::BuildState>)]
    state: Option<BuildState>,
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    cursor: Option<String>,
}

/// List builds
#[utoipa::path(
    get, path = "/builds", tag = "images", params(BuildQuery),
    responses((status = 200, description = "Builds, in the order of their ids.", body = Page<Build>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_builds(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<BuildQuery>,
) -> Result<Answer<Page<Build>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.images.for_each(|item| {
        if let (ImageId::Build(key), ImageRecord::Build(build)) = (&item.id, &*item.value) {
            let image = query.image.as_deref();
            let image = image.is_none_or(|image| image == key.image.as_str());
            let state = query.state.is_none_or(|state| state == build.state);
            if image && state {
                found.push((name_of(key), Build::of(key, build)));
            }
        }
    });
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Answer::ok(place.fill(found)))
}

/// Show a build
#[utoipa::path(
    get, path = "/builds/{id}", tag = "images",
    params(("id" = schema::BuildId, Path, description = "Its id.")),
    responses((status = 200, description = "The build.", body = Build)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_build(
    State(app): State<App>,
    Reader(_): Reader,
    Named(id): Named<String>,
) -> Result<Answer<Build>> {
    let key = key(&id)?;
    let found = app.views.images.get(&ImageId::Build(key.clone()));
    match found.as_ref().map(|item| &*item.value) {
        Some(ImageRecord::Build(build)) => Ok(Answer::ok(Build::of(&key, build))),
        _ => Err(no_build(&id)),
    }
}

fn no_build(id: &str) -> Problem {
    Problem::not_found(format!("there is no build {id:?}"))
}

fn key(id: &str) -> Result<BuildKey> {
    images::parse_build(id).ok_or_else(|| no_build(id))
}

/// Delete a build
///
/// Its files and its uploads are deleted by the builders.
#[utoipa::path(
    delete, path = "/builds/{id}", tag = "images",
    params(("id" = schema::BuildId, Path, description = "Its id.")),
    responses(
        (status = 202, description = "It will be deleted.", body = Accepted),
        (status = 409, description = "It is being built.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["admin"])),
)]
pub(crate) async fn delete_build(
    State(app): State<App>,
    Admin(caller): Admin,
    Named(id): Named<String>,
) -> Result<Answer<Accepted>> {
    caller.concerns_everybody(Right::Admin)?;
    let key = key(&id)?;
    let deleted = images::delete_build(&app.registry, &key, now()).await;
    deleted.map_err(|error| problem("build", error))?;
    Ok(Accepted::answer(format!("the builders will delete {id}")))
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
    #[param(value_type = Option<schema::UploadState>)]
    state: Option<UploadState>,
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    cursor: Option<String>,
}

/// List uploads
#[utoipa::path(
    get, path = "/uploads", tag = "images", params(UploadQuery),
    responses((status = 200, description = "Uploads, by build, provider and id.", body = Page<Upload>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_uploads(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<UploadQuery>,
) -> Result<Answer<Page<Upload>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.images.for_each(|item| {
        if let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value) {
            let image = query.image.as_deref();
            let image = image.is_none_or(|image| image == key.build.image.as_str());
            let provider = query.provider.as_deref();
            let provider = provider.is_none_or(|provider| provider == key.provider.as_str());
            let state = query.state.is_none_or(|state| state == upload.state);
            if image && provider && state {
                found.push((upload_name(key), Upload::of(key, upload)));
            }
        }
    });
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Answer::ok(place.fill(found)))
}

/// As in the path of an upload.
fn upload_name(key: &UploadKey) -> String {
    format!("{}/{}/{}", name_of(&key.build), key.provider, key.upload)
}

fn upload_key(build: &str, provider: &str, upload: &str) -> Result<UploadKey> {
    let none = || {
        Problem::not_found(format!(
            "there is no upload {upload:?} of build {build:?} to provider {provider:?}"
        ))
    };
    Ok(UploadKey {
        build: images::parse_build(build).ok_or_else(none)?,
        provider: provider.parse::<ProviderName>().ok().ok_or_else(none)?,
        upload: upload.parse::<UploadId>().ok().ok_or_else(none)?,
    })
}

/// Show an upload
#[utoipa::path(
    get, path = "/uploads/{build}/{provider}/{id}", tag = "images",
    params(
        ("build" = schema::BuildId, Path, description = "The build."),
        ("provider" = String, Path, description = "The provider."),
        ("id" = schema::UploadId, Path, description = "Its id."),
    ),
    responses((status = 200, description = "The upload.", body = Upload)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_upload(
    State(app): State<App>,
    Reader(_): Reader,
    Named((build, provider, id)): Named<(String, String, String)>,
) -> Result<Answer<Upload>> {
    let key = upload_key(&build, &provider, &id)?;
    let found = app.views.images.get(&ImageId::Upload(key.clone()));
    match found.as_ref().map(|item| &*item.value) {
        Some(ImageRecord::Upload(upload)) => Ok(Answer::ok(Upload::of(&key, upload))),
        _ => Err(Problem::not_found("there is no such upload")),
    }
}

/// Delete an upload from its provider
#[utoipa::path(
    delete, path = "/uploads/{build}/{provider}/{id}", tag = "images",
    params(
        ("build" = schema::BuildId, Path, description = "The build."),
        ("provider" = String, Path, description = "The provider."),
        ("id" = schema::UploadId, Path, description = "Its id."),
    ),
    responses(
        (status = 202, description = "It will be deleted.", body = Accepted),
        (status = 409, description = "It is being uploaded.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["admin"])),
)]
pub(crate) async fn delete_upload(
    State(app): State<App>,
    Admin(caller): Admin,
    Named((build, provider, id)): Named<(String, String, String)>,
) -> Result<Answer<Accepted>> {
    caller.concerns_everybody(Right::Admin)?;
    let key = upload_key(&build, &provider, &id)?;
    let deleted = images::delete_upload(&app.registry, &key, now()).await;
    deleted.map_err(|error| problem("upload", error))?;
    Ok(Accepted::answer("the builders will delete the upload"))
}

/// As events tell of a build or an upload.
pub(crate) fn tell(item: &Item<ImageShape>) -> Option<(Subject, String)> {
    let (subject, image, json) = match (&item.id, &*item.value) {
        (ImageId::Build(key), ImageRecord::Build(build)) => (
            Subject::new(Kind::Build, name_of(key)),
            &key.image,
            serde_json::to_string(&Build::of(key, build)).ok()?,
        ),
        (ImageId::Upload(key), ImageRecord::Upload(upload)) => (
            Subject::new(Kind::Upload, upload_name(key)),
            &key.build.image,
            serde_json::to_string(&Upload::of(key, upload)).ok()?,
        ),
        _ => return None,
    };
    let related = [image.as_str().into()].into();
    Some((Subject { related, ..subject }, json))
}
