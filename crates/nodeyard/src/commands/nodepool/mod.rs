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
use nodeyard_model::{ImageName, ProviderName};
use nodeyard_store::registry::{Patience, Registry};

use crate::commands::image::wait;
use crate::context::CommandContext;
use crate::store_access;

/// How long to wait for a lock, because daemons hold locks for short moments.
const PATIENCE: Patience = Patience::For(Duration::from_secs(5));

#[derive(Debug, Subcommand)]
pub(crate) enum NodepoolStoreCommand {
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
    /// List images in a provider that have our tags and no ready record
    AlienImageList {
        /// Only of this provider
        provider: Option<ProviderName>,
    },
    /// List the current node requests
    RequestList,
    /// Request a build of an image
    ImageBuild {
        image: ImageName,
        /// Wait until it is built and uploaded, and show the progress
        #[arg(long)]
        wait: bool,
    },
    /// Pause builds and uploads of an image
    ImagePause { image: ImageName },
    /// End a pause
    ImageUnpause { image: ImageName },
    /// Delete an image from a provider
    ImageDelete(ImageDeleteArgs),
    /// Delete an image built with diskimage-builder, and its uploads
    DibImageDelete {
        /// `<image>-<build id>`, as in the first column of `dib-image-list`
        id: String,
    },
    /// Place a node in the DELETING state
    Delete {
        id: String,
        /// Delete it from its cloud in the foreground
        #[arg(long)]
        now: bool,
    },
    /// Place a node in the HOLD state
    Hold { id: String },
    /// Show the records of a provider
    Info { provider: ProviderName },
    /// Erase all records of a provider; its cloud is not touched
    Erase {
        provider: ProviderName,
        /// Do not ask for confirmation
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
    provider: String,
    #[arg(long)]
    image: String,
    #[arg(long)]
    upload_id: String,
    #[arg(long)]
    build_id: String,
}

pub(crate) async fn run(
    command: NodepoolStoreCommand,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let target = store_access::TargetArgs::default();
    let work = async |registry: &Registry| on_store(command, registry, context).await;
    store_access::with_registry(&target, context, work).await
}

async fn on_store(
    command: NodepoolStoreCommand,
    registry: &Registry,
    context: &CommandContext,
) -> anyhow::Result<()> {
    match command {
        NodepoolStoreCommand::List { detail } => {
            lists::nodes(registry, None, detail, context.format).await
        }
        NodepoolStoreCommand::ImageList => lists::uploads(registry, context.format).await,
        NodepoolStoreCommand::DibImageList => lists::builds(registry, context.format).await,
        NodepoolStoreCommand::ImageStatus => lists::image_status(registry, context.format).await,
        NodepoolStoreCommand::RequestList => lists::requests(registry, context.format).await,
        NodepoolStoreCommand::ImageBuild { image, wait } => {
            wait::request_build(registry, context, &image, wait).await
        }
        NodepoolStoreCommand::ImagePause { image } => images::pause(registry, &image).await,
        NodepoolStoreCommand::ImageUnpause { image } => images::unpause(registry, &image).await,
        NodepoolStoreCommand::ImageDelete(args) => images::delete_upload(registry, args).await,
        NodepoolStoreCommand::DibImageDelete { id } => images::delete_build(registry, &id).await,
        NodepoolStoreCommand::Delete { id, now: false } => {
            nodes::delete(registry, nodes::parse_id(&id)?, context.format).await
        }
        NodepoolStoreCommand::Delete { id, now: true } => {
            cloud::delete_node(registry, nodes::parse_id(&id)?, context).await
        }
        NodepoolStoreCommand::AlienImageList { provider } => {
            cloud::alien_images(registry, provider.as_ref(), context).await
        }
        NodepoolStoreCommand::Hold { id } => {
            nodes::hold(registry, nodes::parse_id(&id)?, context.format).await
        }
        NodepoolStoreCommand::Info { provider } => {
            info::show(registry, &provider, context.format).await
        }
        NodepoolStoreCommand::Erase { provider, force } => {
            erase::provider(registry, &provider, force).await
        }
        NodepoolStoreCommand::ExportImageData { path } => image_data::export(registry, &path).await,
        NodepoolStoreCommand::ImportImageData { path } => image_data::import(registry, &path).await,
    }
}
