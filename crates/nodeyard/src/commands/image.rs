//! `nodeyard image`: images, by names that do not say how they were made.
//!
//! What `nodepool` can do with images is done by the same code; the rest is here.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use nodeyard_model::{BuildKey, ImageName};
use nodeyard_store::registry::Registry;

use crate::commands::nodepool::{UploadArgs, image_data, images, lists};
use crate::context::Context;
use crate::store_access::{self, TargetArgs};

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// List images: which are paused, which are asked for or being built
    Status,
    /// List builds
    Builds,
    /// List uploads to providers
    Uploads,
    /// Ask for a build
    Build { image: ImageName },
    /// Keep an image from being built
    Pause { image: ImageName },
    /// Take a pause back
    Unpause { image: ImageName },
    /// Delete a build, its files and its uploads
    Delete {
        /// `<image>-<build id>`, as in the first column of `builds`
        #[arg(value_parser = images::build_key)]
        build: BuildKey,
    },
    /// Delete an upload from its provider
    DeleteUpload(UploadArgs),
    /// Write the records of all images to a file
    Export { path: PathBuf },
    /// Read the records of images from a file
    Import { path: PathBuf },
}

pub(crate) async fn run(args: ImageArgs, context: &Context) -> anyhow::Result<()> {
    let access = store_access::open(&args.target, context).await?;
    let registry = Registry::new(Arc::clone(&access.tree));
    let result = on_store(args.command, &registry, context).await;
    registry.locks().settled().await;
    access.close().await;
    result
}

async fn on_store(
    command: ImageCommand,
    registry: &Registry,
    context: &Context,
) -> anyhow::Result<()> {
    match command {
        ImageCommand::Status => lists::image_status(registry, context.format).await,
        ImageCommand::Builds => lists::builds(registry, context.format).await,
        ImageCommand::Uploads => lists::uploads(registry, context.format).await,
        ImageCommand::Build { image } => images::request_build(registry, context, &image).await,
        ImageCommand::Pause { image } => images::pause(registry, &image).await,
        ImageCommand::Unpause { image } => images::unpause(registry, &image).await,
        ImageCommand::Delete { build } => images::delete_build(registry, &build).await,
        ImageCommand::DeleteUpload(args) => images::delete_upload(registry, args).await,
        ImageCommand::Export { path } => image_data::export(registry, &path).await,
        ImageCommand::Import { path } => image_data::import(registry, &path).await,
    }
}
