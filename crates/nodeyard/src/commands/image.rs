//! `nodeyard image`: images, by names that do not say how they were made.
//!
//! What `nodepool` can do with images is done by the same code; the rest is here.

mod candidates;
mod cloud;
pub(super) mod logs;
mod provenance;
mod publish;
mod published;
mod retire;
mod trial;
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
use crate::context::Context;
use crate::exit::Outcome;
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
    OnStore(StoreCommand),
    #[command(flatten)]
    Records(RecordCommand),
    /// Show what `image-filters` find in the clouds now: which image wins, and why the others do not
    Candidates {
        /// A label, or a cloud image as `provider/image`; everything when absent
        what: Option<String>,
        /// Also show images that meet no condition at all
        #[arg(long)]
        all: bool,
    },
    /// Put an image into a cloud, for `image-filters` to find; for jobs, needs no store
    Publish(publish::PublishArgs),
    /// Remove all but the newest of an image that jobs have published; needs no store
    Prune(retire::PruneArgs),
    /// Find, and remove, what aborted jobs have left of images they published; needs no store
    Leaks(retire::LeaksArgs),
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
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
    /// Print the log of the newest build of an image, or of another one
    Logs(logs::BuildLogsArgs),
    /// Keep an image from being built
    Pause { image: ImageName },
    /// Take a pause back
    Unpause { image: ImageName },
    /// Have all launches use one build, and keep it
    Pin {
        /// `<image>-<build id>`, as in the first column of `build ls`
        #[arg(value_parser = images::build_key)]
        build: BuildKey,
    },
    /// Have launches use the newest build again, also one that was taken back
    Unpin { image: ImageName },
    /// Have launches use the build before the newest, until there is a newer one
    Rollback { image: ImageName },
    /// Delete all builds of an image, their files and their uploads; it is built again unless it is paused
    Rm { image: ImageName },
    /// Write the records of all images to a file
    Export { path: PathBuf },
    /// Read the records of images from a file
    Import { path: PathBuf },
}

pub(crate) async fn run(args: ImageArgs, context: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        ImageCommand::Candidates { what, all } => {
            candidates::show(context, what.as_deref(), all).await?;
        }
        ImageCommand::Records(command) => {
            records::on_target(RecordKind::Image, &args.target, command, context).await?;
        }
        ImageCommand::Publish(args) => publish::publish(args, context).await?,
        ImageCommand::Prune(args) => return retire::prune(args, context).await,
        ImageCommand::Leaks(args) => return retire::leaks(args, context).await,
        ImageCommand::OnStore(command) => {
            let work = async |registry: &Registry| on_store(command, registry, context).await;
            store_access::with_registry(&args.target, context, work).await?;
        }
    }
    Ok(Outcome::Success)
}

/// For tables: to the second, in UTC.
fn time(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.as_secs() as i64);
    at.map_or_else(|_| String::new(), |at| at.to_string())
}

async fn on_store(
    command: StoreCommand,
    registry: &Registry,
    context: &Context,
) -> anyhow::Result<()> {
    match command {
        StoreCommand::Build { image, wait } => {
            wait::request_build(registry, context, &image, wait).await
        }
        StoreCommand::Wait { image } => {
            wait::for_build(registry, context, &image, &BTreeSet::new()).await
        }
        StoreCommand::Why { image } => why::explain(registry, context, image).await,
        StoreCommand::Provenance { build } => provenance::show(registry, context, &build).await,
        StoreCommand::Logs(args) => logs::print(registry, context, &args).await,
        StoreCommand::Pause { image } => images::pause(registry, &image).await,
        StoreCommand::Unpause { image } => images::unpause(registry, &image).await,
        StoreCommand::Pin { build } => trial::pin(registry, context, &build).await,
        StoreCommand::Unpin { image } => trial::unpin(registry, context, &image).await,
        StoreCommand::Rollback { image } => trial::roll_back(registry, context, &image).await,
        StoreCommand::Rm { image } => remove(registry, &image).await,
        StoreCommand::Export { path } => image_data::export(registry, &path).await,
        StoreCommand::Import { path } => image_data::import(registry, &path).await,
    }
}

async fn remove(registry: &Registry, image: &ImageName) -> anyhow::Result<()> {
    let builds = registry.images().builds(image).await?;
    ensure!(
        !builds.is_empty(),
        "there is no build of {image}; `nodeyard image ls` lists the images"
    );
    // One that is still being made keeps none of the others.
    let mut removed = Ok(());
    for (key, _) in &builds {
        removed = removed.and(build::remove(registry, key).await);
    }
    removed
}
