//! The commands of `nodepool` that work on the store.

mod cloud;
mod erase;
pub(super) mod image_data;
pub(super) mod images;
mod info;
mod lists;
mod nodes;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nodeyard_model::{BuildId, ImageName, NodeId, ProviderName, UploadId};
use nodeyard_store::registry::{Patience, Registry};

use crate::commands::image::wait;
use crate::context::Context;
use crate::store_access;

/// How long to wait for a lock that a daemon holds for a moment.
const PATIENCE: Patience = Patience::For(Duration::from_secs(5));

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// List nodes
    List {
        /// Show all columns
        #[arg(long)]
        detail: bool,
    },
    /// List images from providers
    ImageList,
    /// List images built with diskimage-builder
    DibImageList,
    /// List the status of images
    ImageStatus,
    /// List images that carry our names in a provider and that no record knows as ready
    AlienImageList {
        /// Only of this provider
        provider: Option<ProviderName>,
    },
    /// List the current node requests
    RequestList,
    /// Ask the builders to build an image
    ImageBuild {
        image: ImageName,
        /// Stay until it is built and uploaded, and show how far it is
        #[arg(long)]
        wait: bool,
    },
    /// Keep an image from being built and uploaded
    ImagePause { image: ImageName },
    /// Take a pause back
    ImageUnpause { image: ImageName },
    /// Delete an image from a provider
    ImageDelete(ImageDeleteArgs),
    /// Delete an image built with diskimage-builder, and its uploads
    DibImageDelete {
        /// `<image>-<build id>`, as in the first column of `dib-image-list`
        #[arg(value_parser = images::build_key)]
        id: nodeyard_model::BuildKey,
    },
    /// Place a node in the DELETING state
    Delete {
        id: NodeId,
        /// Delete it from its cloud in the foreground
        #[arg(long)]
        now: bool,
    },
    /// Place a node in the HOLD state
    Hold { id: NodeId },
    /// Show what is recorded of a provider
    Info { provider: ProviderName },
    /// Erase everything that is recorded of a provider; its cloud is not touched
    Erase {
        provider: ProviderName,
        /// Do not ask
        #[arg(long)]
        force: bool,
    },
    /// Write image data to a file
    ExportImageData { path: PathBuf },
    /// Read image data from a file
    ImportImageData { path: PathBuf },
}

#[derive(Debug, Args)]
pub(crate) struct ImageDeleteArgs {
    #[arg(long)]
    provider: ProviderName,
    #[arg(long)]
    image: ImageName,
    #[arg(long)]
    upload_id: UploadId,
    #[arg(long)]
    build_id: BuildId,
}

pub(crate) async fn run(command: StoreCommand, context: &Context) -> anyhow::Result<()> {
    let target = store_access::TargetArgs::default();
    let work = async |registry: &Registry| on_store(command, registry, context).await;
    store_access::with_registry(&target, context, work).await
}

async fn on_store(
    command: StoreCommand,
    registry: &Registry,
    context: &Context,
) -> anyhow::Result<()> {
    match command {
        StoreCommand::List { detail } => lists::nodes(registry, None, detail, context.format).await,
        StoreCommand::ImageList => lists::uploads(registry, context.format).await,
        StoreCommand::DibImageList => lists::builds(registry, context.format).await,
        StoreCommand::ImageStatus => lists::image_status(registry, context.format).await,
        StoreCommand::RequestList => lists::requests(registry, context.format).await,
        StoreCommand::ImageBuild { image, wait } => {
            wait::request_build(registry, context, &image, wait).await
        }
        StoreCommand::ImagePause { image } => images::pause(registry, &image).await,
        StoreCommand::ImageUnpause { image } => images::unpause(registry, &image).await,
        StoreCommand::ImageDelete(args) => images::delete_upload(registry, args).await,
        StoreCommand::DibImageDelete { id } => images::delete_build(registry, &id).await,
        StoreCommand::Delete { id, now: false } => {
            nodes::delete(registry, id, context.format).await
        }
        StoreCommand::Delete { id, now: true } => cloud::delete_node(registry, id, context).await,
        StoreCommand::AlienImageList { provider } => {
            cloud::alien_images(registry, provider.as_ref(), context).await
        }
        StoreCommand::Hold { id } => nodes::hold(registry, id, context.format).await,
        StoreCommand::Info { provider } => info::show(registry, &provider, context.format).await,
        StoreCommand::Erase { provider, force } => {
            erase::provider(registry, &provider, force).await
        }
        StoreCommand::ExportImageData { path } => image_data::export(registry, &path).await,
        StoreCommand::ImportImageData { path } => image_data::import(registry, &path).await,
    }
}
