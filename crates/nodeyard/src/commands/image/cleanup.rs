//! `nodeyard image prune` and `leaks`: delete superseded and left-behind published images.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use nodeyard_builder::worker::cloud::delete_image;
use nodeyard_driver::{ErrorClass, ExternalId, ImageTarget};
use nodeyard_model::{BuildId, Timestamp, now, with_causes};
use serde::Serialize;
use tokio::time::timeout;

use super::cloud::{CloudArgs, CommandCloud};
use super::published::{
    LeakCriteria, PruneDecision, Published, Publisher, find_leaks, find_superseded,
    parse_identifier, publication_key,
};
use crate::context::CommandContext;
use crate::exit::CommandOutcome;
use crate::output::{self, OutputFormat};

pub(super) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done: nothing left to delete
  1  failed to delete an image or to query the cloud; the error is on standard error
  2  the command line is wrong
  3  images remain to be deleted: in a dry run, or because the cloud reports them in use";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct PruneArgs {
    /// The image to prune
    #[arg(value_parser = parse_identifier)]
    image: String,
    /// How many complete images to keep, the newest
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    /// Only print what would be deleted
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cleanup: CleanupArgs,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct LeaksArgs {
    /// Only of this image
    #[arg(value_parser = parse_identifier)]
    image: Option<String>,
    /// Delete them
    #[arg(long)]
    delete: bool,
    /// Seconds after which an incomplete image counts as left behind
    #[arg(long, value_name = "SECONDS", default_value_t = 86400)]
    older_than: u64,
    /// The id of a publication whose job has ended; its incomplete images are left behind at any age
    #[arg(long, value_name = "ID", value_parser = parse_identifier)]
    ended: Option<String>,
    #[command(flatten)]
    cleanup: CleanupArgs,
}

#[derive(Debug, Args)]
struct CleanupArgs {
    #[command(flatten)]
    cloud: CloudArgs,
    #[command(flatten)]
    publisher: Publisher,
    /// Timeout for deleting one image, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
}

pub(super) async fn prune(
    args: PruneArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let published = PublishedImages::open(&args.cleanup, context)?;
    let images = published.published(Some(&args.image)).await?;
    let in_use = published.in_use().await?;
    let keep = usize::try_from(args.keep).unwrap_or(usize::MAX);
    let decisions = find_superseded(&images, keep, &in_use);
    published
        .apply(images, decisions, !args.dry_run, context)
        .await
}

pub(super) async fn leaks(
    args: LeaksArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let published = PublishedImages::open(&args.cleanup, context)?;
    let images = published.published(args.image.as_deref()).await?;
    let in_use = published.in_use().await?;
    let criteria = LeakCriteria {
        older_than: Duration::from_secs(args.older_than),
        ended: args.ended.as_deref(),
        now: now(),
    };
    let decisions = find_leaks(&images, criteria, &in_use);
    published
        .apply(images, decisions, args.delete, context)
        .await
}

#[derive(Debug, Serialize)]
struct PrunedImage {
    image: String,
    publication: String,
    id: String,
    name: String,
    created: Option<Timestamp>,
    /// `stays`, `goes` (not yet), `gone`, `still-there` or `failed`.
    outcome: &'static str,
    reason: String,
}

struct PublishedImages<'a> {
    args: &'a CleanupArgs,
    cloud: CommandCloud,
}

impl<'a> PublishedImages<'a> {
    fn open(args: &'a CleanupArgs, context: &CommandContext) -> anyhow::Result<Self> {
        let cloud = CommandCloud::open(&args.cloud, context, args.publisher.system())?;
        Ok(Self { args, cloud })
    }

    async fn published(&self, image: Option<&str>) -> anyhow::Result<Vec<Published>> {
        let images = self.cloud.images()?.list_images().await;
        let images =
            images.with_context(|| format!("failed to list the images of {}", self.cloud.name))?;
        Ok(self.args.publisher.select(image, images))
    }

    async fn in_use(&self) -> anyhow::Result<BTreeSet<ExternalId>> {
        let in_use = self.cloud.images()?.images_in_use().await;
        in_use.with_context(|| format!("failed to list the images in use in {}", self.cloud.name))
    }

    async fn apply(
        &self,
        images: Vec<Published>,
        decisions: Vec<PruneDecision>,
        delete: bool,
        context: &CommandContext,
    ) -> anyhow::Result<CommandOutcome> {
        let mut lines = Vec::with_capacity(images.len());
        for (image, decision) in images.into_iter().zip(decisions) {
            let (outcome, reason) = match decision {
                PruneDecision::Keep(reason) => ("stays", reason.to_owned()),
                PruneDecision::Delete(reason) if !delete => ("goes", reason.to_owned()),
                PruneDecision::Delete(reason) => self.remove(&image, reason).await,
            };
            lines.push(PrunedImage {
                image: image.publication.image.into(),
                publication: image.publication.id.into(),
                id: image.cloud.id.to_string(),
                name: image.cloud.name.into(),
                created: image.cloud.created,
                outcome,
                reason,
            });
        }
        print(&lines, context.format)?;
        let any = |outcome| lines.iter().any(|line| line.outcome == outcome);
        Ok(if any("failed") {
            CommandOutcome::Failure
        } else if any("goes") || any("still-there") {
            CommandOutcome::Unfinished
        } else {
            CommandOutcome::Success
        })
    }

    /// Deletes an image. Waits for a cloud that reports it in use, at most for the limit.
    async fn remove(&self, image: &Published, reason: &'static str) -> (&'static str, String) {
        let build = BuildId::from_u128(0);
        let upload = match publication_key(&image.publication.image, &self.cloud.provider, build) {
            Ok(upload) => upload,
            Err(error) => return ("failed", error.to_string()),
        };
        let target = ImageTarget {
            upload,
            external_id: Some(image.cloud.id.clone()),
        };
        let limit = Duration::from_secs(self.args.limit);
        let removed = delete_image(&*self.cloud.driver, &target);
        let removed = timeout(limit, removed).await;
        match removed {
            Ok(Ok(())) => ("gone", reason.to_owned()),
            Ok(Err(error)) if error.class() == ErrorClass::Retry => {
                ("still-there", with_causes(&error))
            }
            Ok(Err(error)) => ("failed", with_causes(&error)),
            Err(_) => (
                "still-there",
                format!(
                    "{reason}, but the cloud has not deleted it within {} s",
                    limit.as_secs()
                ),
            ),
        }
    }
}

fn print(lines: &[PrunedImage], format: OutputFormat) -> anyhow::Result<()> {
    if format.is_document() {
        return output::document(&lines, format);
    }
    if lines.is_empty() {
        writeln!(io::stdout(), "no published images with this name")?;
        return Ok(());
    }
    let rows = lines.iter().map(|line| {
        [
            line.image.clone(),
            line.name.clone(),
            line.id.clone(),
            line.created.map(super::time).unwrap_or_default(),
            line.outcome.to_owned(),
            line.reason.clone(),
        ]
    });
    output::table(
        ["Image", "Name", "ID", "Created", "Outcome", "Reason"],
        rows,
    )
}
