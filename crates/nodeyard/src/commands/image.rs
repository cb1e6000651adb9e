//! `nodeyard image`: images, however they are built.
//!
//! Operations that `nodepool` has too are implemented in its modules.

mod candidates;
mod cleanup;
mod cloud;
pub(super) mod logs;
mod pin;
mod provenance;
mod publish;
mod published;
pub(super) mod wait;
pub(super) mod why;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Subcommand};
use nodeyard_model::{BuildKey, ImageName, Timestamp};
use nodeyard_store::registry::Registry;

use crate::commands::build;
use crate::commands::nodepool::{image_data, images};
use crate::commands::records::{self, RecordCommand, RecordKind};
use crate::context::CommandContext;
use crate::exit::CommandOutcome;
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
    #[command(flatten)]
    OnStore(ImageStoreCommand),
    #[command(flatten)]
    Records(RecordCommand),
    /// Show what `image-filters` match in the clouds now: which image is selected, and why the others are not
    Candidates {
        /// A label, or a cloud image as `provider/image`; everything when absent
        what: Option<String>,
        /// Also show images that meet no condition at all
        #[arg(long)]
        all: bool,
    },
    /// Upload an image to a cloud, for `image-filters` to find; for jobs, needs no store
    Publish(publish::PublishArgs),
    /// Delete all but the newest of an image that jobs have published; needs no store
    Prune(cleanup::PruneArgs),
    /// Find, and delete, what aborted jobs have left of images they published; needs no store
    Leaks(cleanup::LeaksArgs),
}

#[derive(Debug, Subcommand)]
enum ImageStoreCommand {
    /// Request a build
    Build {
        image: ImageName,
        /// Wait until it is built and uploaded, and show the progress
        #[arg(long)]
        wait: bool,
    },
    /// Wait until an image is built and uploaded, and show the progress; requests nothing
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
    /// Print the log of the newest build of an image, or of another one
    Logs(logs::BuildLogsArgs),
    /// Pause builds and uploads of an image
    Pause { image: ImageName },
    /// End a pause
    Unpause { image: ImageName },
    /// Make all launches use one build, and keep it
    Pin {
        /// `<image>-<build id>`, as in the first column of `build ls`
        #[arg(value_parser = images::build_key)]
        build: BuildKey,
    },
    /// Make launches use the newest build again, even if it was rolled back
    Unpin { image: ImageName },
    /// Make launches use the build before the newest, until there is a newer one
    Rollback { image: ImageName },
    /// Delete all builds of an image, their files and their uploads; it is built again unless it is paused
    Rm { image: ImageName },
    /// Write the records of all images to a file
    Export { path: PathBuf },
    /// Read the records of images from a file
    Import { path: PathBuf },
}

pub(crate) async fn run(
    args: ImageArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    match args.command {
        ImageCommand::Candidates { what, all } => {
            candidates::show(context, what.as_deref(), all).await?;
        }
        ImageCommand::Records(command) => {
            records::on_target(RecordKind::Image, &args.target, command, context).await?;
        }
        ImageCommand::Publish(args) => publish::publish(args, context).await?,
        ImageCommand::Prune(args) => return cleanup::prune(args, context).await,
        ImageCommand::Leaks(args) => return cleanup::leaks(args, context).await,
        ImageCommand::OnStore(command) => {
            let work = async |registry: &Registry| on_store(command, registry, context).await;
            store_access::with_registry(&args.target, context, work).await?;
        }
    }
    Ok(CommandOutcome::Success)
}

/// Formats a time for tables: to the second, in UTC.
fn time(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.as_secs() as i64);
    at.map_or_else(|_| String::new(), |at| at.to_string())
}

async fn on_store(
    command: ImageStoreCommand,
    registry: &Registry,
    context: &CommandContext,
) -> anyhow::Result<()> {
    match command {
        ImageStoreCommand::Build { image, wait } => {
            wait::request_build(registry, context, &image, wait).await
        }
        ImageStoreCommand::Wait { image } => {
            wait::for_build(registry, context, &image, &BTreeSet::new()).await
        }
        ImageStoreCommand::Why { image } => why::explain(registry, context, image).await,
        ImageStoreCommand::Provenance { build } => {
            provenance::show(registry, context, &build).await
        }
        ImageStoreCommand::Logs(args) => logs::print(registry, context, &args).await,
        ImageStoreCommand::Pause { image } => images::pause(registry, &image).await,
        ImageStoreCommand::Unpause { image } => images::unpause(registry, &image).await,
        ImageStoreCommand::Pin { build } => pin::pin(registry, context, &build).await,
        ImageStoreCommand::Unpin { image } => pin::unpin(registry, context, &image).await,
        ImageStoreCommand::Rollback { image } => pin::roll_back(registry, context, &image).await,
        ImageStoreCommand::Rm { image } => remove(registry, &image).await,
        ImageStoreCommand::Export { path } => image_data::export(registry, &path).await,
        ImageStoreCommand::Import { path } => image_data::import(registry, &path).await,
    }
}

async fn remove(registry: &Registry, image: &ImageName) -> anyhow::Result<()> {
    let builds = registry.images().builds(image).await?;
    ensure!(
        !builds.is_empty(),
        "no build of {image}; `nodeyard image ls` lists the images"
    );
    // A build that is still in progress does not prevent deleting the others.
    let mut removed = Ok(());
    for (key, _) in &builds {
        removed = removed.and(build::remove(registry, key).await);
    }
    removed
}
