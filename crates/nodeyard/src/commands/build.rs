//! `nodeyard build` and `nodeyard upload`: builds of images and their uploads.

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use nodeyard_model::{BuildKey, UploadKey, now};
use nodeyard_operations::{Error, images};
use nodeyard_store::registry::Registry;

use crate::commands::image::logs;
use crate::commands::records::{self, RecordCommand, RecordKind};
use crate::context::CommandContext;
use crate::store_access::{self, TargetArgs};

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: BuildCommand,
}

#[derive(Debug, Subcommand)]
enum BuildCommand {
    #[command(flatten)]
    Records(RecordCommand),
    /// Print the log of a build
    Logs(logs::BuildLogsArgs),
    /// Delete builds, their files and their uploads
    Rm {
        /// As in the first column of `ls`, or the beginning
        #[arg(required = true)]
        builds: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: UploadCommand,
}

#[derive(Debug, Subcommand)]
enum UploadCommand {
    #[command(flatten)]
    Records(RecordCommand),
    /// Delete uploads from their providers; they are uploaded again unless the image is paused
    Rm {
        /// As in the first column of `ls`, or the beginning
        #[arg(required = true)]
        uploads: Vec<String>,
    },
}

pub(crate) async fn run(args: BuildArgs, context: &CommandContext) -> anyhow::Result<()> {
    match args.command {
        BuildCommand::Records(command) => {
            records::on_target(RecordKind::Build, &args.target, command, context).await
        }
        BuildCommand::Logs(logs) => {
            let print = async |registry: &Registry| logs::print(registry, context, &logs).await;
            store_access::with_registry(&args.target, context, print).await
        }
        BuildCommand::Rm { builds } => {
            store_access::with_registry(&args.target, context, async |registry| {
                for build in &builds {
                    let key = find(registry, build).await?;
                    remove(registry, &key).await?;
                }
                Ok(())
            })
            .await
        }
    }
}

pub(crate) async fn uploads(args: UploadArgs, context: &CommandContext) -> anyhow::Result<()> {
    match args.command {
        UploadCommand::Records(command) => {
            records::on_target(RecordKind::Upload, &args.target, command, context).await
        }
        UploadCommand::Rm { uploads } => {
            store_access::with_registry(&args.target, context, async |registry| {
                for upload in &uploads {
                    remove_upload(registry, upload).await?;
                }
                Ok(())
            })
            .await
        }
    }
}

/// Returns the build with this name, or with the only name that starts like this.
pub(super) async fn find(registry: &Registry, text: &str) -> anyhow::Result<BuildKey> {
    if let Some(key) = images::parse_build(text) {
        return Ok(key);
    }
    let entry = records::find(RecordKind::Build, text, registry, None).await?;
    images::parse_build(entry.id()).with_context(|| format!("{} is not a build", entry.id()))
}

/// Marks a build as deleting; workers and providers delete their parts.
pub(super) async fn remove(registry: &Registry, key: &BuildKey) -> anyhow::Result<()> {
    let name = format!("{}-{}", key.image, key.build);
    let deleted = images::delete_build(registry, key, now()).await;
    deleted.map_err(|error| match error {
        Error::Gone => anyhow!("there is no build {name}; `nodeyard build ls` lists them"),
        Error::Busy => anyhow!("build {name} is locked; try again in a moment"),
        Error::InProgress => {
            anyhow!("build {name} is still in progress; try again when it has ended")
        }
        error => error.into(),
    })
}

async fn remove_upload(registry: &Registry, text: &str) -> anyhow::Result<()> {
    let entry = records::find(RecordKind::Upload, text, registry, None).await?;
    let name = entry.id();
    let key = parse_upload(name).with_context(|| format!("{name} is not an upload"))?;
    let deleted = images::delete_upload(registry, &key, now()).await;
    deleted.map_err(|error| match error {
        Error::Gone => anyhow!("there is no upload {name}; `nodeyard upload ls` lists them"),
        Error::Busy => anyhow!("upload {name} is locked; try again in a moment"),
        Error::InProgress => {
            anyhow!("upload {name} is still in progress; try again when it has ended")
        }
        error => error.into(),
    })
}

/// Parses `<image>-<build id>/<provider>/<upload id>`.
fn parse_upload(text: &str) -> Option<UploadKey> {
    let (build, rest) = text.split_once('/')?;
    let (provider, upload) = rest.rsplit_once('/')?;
    Some(UploadKey {
        build: images::parse_build(build)?,
        provider: provider.parse().ok()?,
        upload: upload.parse().ok()?,
    })
}
