//! `nodeyard image`: images, by names that do not say how they were made.
//!
//! What `nodepool` can do with images is done by the same code; the rest is here.

mod logs;
mod provenance;
mod trial;
mod wait;
mod why;

use std::collections::BTreeSet;
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
    Build {
        image: ImageName,
        /// Stay until it is built and uploaded, and show how far it is
        #[arg(long)]
        wait: bool,
    },
    /// Stay until an image is built and uploaded, and show how far it is; nothing is asked for
    Wait { image: ImageName },
    /// Say why an image is (not) being built, uploaded or deleted
    Why {
        /// All images when absent
        image: Option<ImageName>,
    },
    /// Say where builds come from, what was checked, and which nodes boot from them
    Provenance {
        /// `<image>-<build id>`, or an image for all of its builds
        build: String,
    },
    /// Print the log of a build
    Logs {
        /// `<image>-<build id>`, or an image for its newest build
        build: String,
        /// Go on until the build has ended
        #[arg(short, long)]
        follow: bool,
    },
    /// Keep an image from being built
    Pause { image: ImageName },
    /// Take a pause back
    Unpause { image: ImageName },
    /// Have all launches use one build, and keep it
    Pin {
        /// `<image>-<build id>`, as in the first column of `builds`
        #[arg(value_parser = images::build_key)]
        build: BuildKey,
    },
    /// Have launches use the newest build again, also one that was taken back
    Unpin { image: ImageName },
    /// Have launches use the build before the newest, until there is a newer one
    Rollback { image: ImageName },
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
        ImageCommand::Build { image, wait } => {
            let before = wait::builds(registry, &image).await?;
            images::request_build(registry, context, &image).await?;
            match wait {
                true => wait::for_build(registry, context, &image, &before).await,
                false => Ok(()),
            }
        }
        ImageCommand::Wait { image } => {
            wait::for_build(registry, context, &image, &BTreeSet::new()).await
        }
        ImageCommand::Why { image } => why::explain(registry, context, image).await,
        ImageCommand::Provenance { build } => provenance::show(registry, context, &build).await,
        ImageCommand::Logs { build, follow } => {
            logs::print(registry, context, &build, follow).await
        }
        ImageCommand::Pause { image } => images::pause(registry, &image).await,
        ImageCommand::Unpause { image } => images::unpause(registry, &image).await,
        ImageCommand::Pin { build } => trial::pin(registry, &build).await,
        ImageCommand::Unpin { image } => trial::unpin(registry, &image).await,
        ImageCommand::Rollback { image } => trial::roll_back(registry, &image).await,
        ImageCommand::Delete { build } => images::delete_build(registry, &build).await,
        ImageCommand::DeleteUpload(args) => images::delete_upload(registry, args).await,
        ImageCommand::Export { path } => image_data::export(registry, &path).await,
        ImageCommand::Import { path } => image_data::import(registry, &path).await,
    }
}
