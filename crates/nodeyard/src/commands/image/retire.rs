//! `nodeyard image prune` and `leaks`: published images that nobody needs any more.

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

use super::cloud::{Cloud, CloudArgs};
use super::published::{
    Fate, Patience, Published, Publisher, left_behind, no_record, superfluous, word,
};
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Format};

pub(super) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done: there is nothing left to remove
  1  something could not be removed, or the cloud not be asked; the reason is on standard error
  2  the command line is wrong
  3  something is to be removed and still there: a dry run, or the cloud says that it is in use";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct PruneArgs {
    /// The image whose old states go
    #[arg(value_parser = word)]
    image: String,
    /// How many complete ones stay, the newest
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct LeaksArgs {
    /// Only of this image
    #[arg(value_parser = word)]
    image: Option<String>,
    /// Remove them
    #[arg(long)]
    delete: bool,
    /// Seconds after which what is not complete never will be
    #[arg(long, value_name = "SECONDS", default_value_t = 86400)]
    older_than: u64,
    /// A publication that is over, however young what it left is
    #[arg(long, value_name = "ID", value_parser = word)]
    ended: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    cloud: CloudArgs,
    #[command(flatten)]
    publisher: Publisher,
    /// Seconds that the cloud gets to remove one image
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
}

pub(super) async fn prune(args: PruneArgs, context: &Context) -> anyhow::Result<Outcome> {
    let place = Place::open(&args.common, context)?;
    let images = place.published(Some(&args.image)).await?;
    let in_use = place.in_use().await?;
    let keep = usize::try_from(args.keep).unwrap_or(usize::MAX);
    let fates = superfluous(&images, keep, &in_use);
    place.carry_out(images, fates, !args.dry_run, context).await
}

pub(super) async fn leaks(args: LeaksArgs, context: &Context) -> anyhow::Result<Outcome> {
    let place = Place::open(&args.common, context)?;
    let images = place.published(args.image.as_deref()).await?;
    let in_use = place.in_use().await?;
    let patience = Patience {
        older_than: Duration::from_secs(args.older_than),
        ended: args.ended.as_deref(),
        now: now(),
    };
    let fates = left_behind(&images, patience, &in_use);
    place.carry_out(images, fates, args.delete, context).await
}

#[derive(Debug, Serialize)]
struct Line {
    image: String,
    publication: String,
    id: String,
    name: String,
    created: Option<Timestamp>,
    /// `stays`, `goes` (not yet), `gone`, `still-there` or `failed`.
    outcome: &'static str,
    reason: String,
}

struct Place<'a> {
    args: &'a Common,
    cloud: Cloud,
}

impl<'a> Place<'a> {
    fn open(args: &'a Common, context: &Context) -> anyhow::Result<Self> {
        let cloud = Cloud::of(&args.cloud, context, args.publisher.system())?;
        Ok(Self { args, cloud })
    }

    async fn published(&self, image: Option<&str>) -> anyhow::Result<Vec<Published>> {
        let images = self.cloud.images()?.list_images().await;
        let images =
            images.with_context(|| format!("{} does not list its images", self.cloud.name))?;
        Ok(self.args.publisher.select(image, images))
    }

    async fn in_use(&self) -> anyhow::Result<BTreeSet<ExternalId>> {
        let in_use = self.cloud.images()?.images_in_use().await;
        in_use.with_context(|| {
            format!(
                "{} does not tell what its machines are made from",
                self.cloud.name
            )
        })
    }

    async fn carry_out(
        &self,
        images: Vec<Published>,
        fates: Vec<Fate>,
        for_real: bool,
        context: &Context,
    ) -> anyhow::Result<Outcome> {
        let mut lines = Vec::with_capacity(images.len());
        for (image, fate) in images.into_iter().zip(fates) {
            let (outcome, reason) = match fate {
                Fate::Stays(reason) => ("stays", reason.to_owned()),
                Fate::Goes(reason) if !for_real => ("goes", reason.to_owned()),
                Fate::Goes(reason) => self.remove(&image, reason).await,
            };
            lines.push(Line {
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
            Outcome::Failure
        } else if any("goes") || any("still-there") {
            Outcome::Unfinished
        } else {
            Outcome::Success
        })
    }

    /// A cloud that says that it is in use is not waited for longer than the limit.
    async fn remove(&self, image: &Published, reason: &'static str) -> (&'static str, String) {
        let build = BuildId::from_u128(0);
        let upload = match no_record(&image.publication.image, &self.cloud.provider, build) {
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
                    "{reason}, but the cloud has not let go of it in {} s",
                    limit.as_secs()
                ),
            ),
        }
    }
}

fn print(lines: &[Line], format: Format) -> anyhow::Result<()> {
    if format.is_document() {
        return output::document(&lines, format);
    }
    if lines.is_empty() {
        writeln!(io::stdout(), "there are no published images of this name")?;
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
