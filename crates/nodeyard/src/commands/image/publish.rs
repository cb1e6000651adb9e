//! `nodeyard image publish`: a job uploads an image to a cloud.
//!
//! The id of a publication, usually that of the job's build, is part of the image's tags. A job that is repeated with
//! the same id keeps a complete image and replaces an incomplete one, so there are no duplicates.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use nodeyard_builder::worker::cloud as retried;
use nodeyard_driver::{
    Error, ExternalId, ImageStatus, ImageTarget, Images, Progress, UploadOrder, UploadedImage,
};
use nodeyard_image::{Digests, Format, digest, inspect};
use nodeyard_model::{BuildId, ProviderName, now};
use serde::Serialize;
use tokio::time::timeout;
use uuid::Uuid;

use super::cloud::{CloudArgs, CommandCloud};
use super::published::{Publisher, parse_identifier, publication_key};
use crate::commands::signals;
use crate::context::CommandContext;
use crate::output::{self, OutputFormat as Output};

/// The timeout for deleting a failed upload.
const CLEANUP_LIMIT: Duration = Duration::from_secs(120);

/// Reserved prefixes of property names, Nodeyard's and Nodepool's.
const RESERVED: [&str; 2] = ["nodeyard_", "nodepool_"];

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// The image file
    file: PathBuf,
    /// The name of the image; `nodeyard_published_image` of the file in the cloud
    #[arg(long, value_parser = parse_identifier)]
    image: String,
    #[command(flatten)]
    cloud: CloudArgs,
    #[command(flatten)]
    publisher: Publisher,
    /// The id of the publication, usually that of the job's build; a new one when absent
    #[arg(long, value_parser = parse_identifier)]
    id: Option<String>,
    /// Format of the file; from its extension when absent
    #[arg(long, value_name = "FORMAT")]
    file_format: Option<String>,
    /// Its name in the cloud; the image's with the time when absent
    #[arg(long)]
    name: Option<String>,
    /// A property for filters
    #[arg(long = "property", value_name = "KEY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,
    /// A tag for filters
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The timeout in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    limit: u64,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
}

fn property(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() || RESERVED.iter().any(|reserved| key.starts_with(reserved)) {
        return Err(format!(
            "invalid property {key:?}: the name is empty or reserved"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[derive(Debug, Serialize)]
struct PublishReport<'a> {
    cloud: &'a str,
    image: &'a str,
    publication: &'a str,
    /// None for a dry run.
    id: Option<String>,
    name: &'a str,
    format: &'a str,
    sha256: Option<&'a str>,
    properties: &'a BTreeMap<String, String>,
    tags: &'a [String],
    /// `published`, `taken-over` or `dry-run`.
    outcome: &'static str,
}

pub(super) async fn publish(args: PublishArgs, context: &CommandContext) -> anyhow::Result<()> {
    let format = format(&args)?;
    let cloud = CommandCloud::open(&args.cloud, context, args.publisher.system())?;
    let images = cloud.images()?;
    let id = match &args.id {
        Some(id) => id.clone(),
        None => Uuid::new_v4().simple().to_string(),
    };
    let file = args.file.clone();
    let digests = tokio::task::spawn_blocking(move || digest(&file)).await??;
    let order = order(&args, &cloud.provider, &id, &format, &digests)?;
    let mut report = PublishReport {
        cloud: &cloud.name,
        image: &args.image,
        publication: &id,
        id: None,
        name: &order.name,
        format: format.as_str(),
        sha256: digests.sha256.as_deref(),
        properties: &order.metadata,
        tags: &args.tags,
        outcome: "dry-run",
    };
    if !args.dry_run {
        let complete = is_complete(images, &cloud.name, &order).await?;
        report.outcome = if complete { "taken-over" } else { "published" };
        let done = upload(&cloud, &order, Duration::from_secs(args.limit)).await?;
        report.id = Some(done.external_id.to_string());
    }
    match context.format {
        Output::Json | Output::Yaml => output::document(&report, context.format),
        Output::Table => {
            let id = report.id.as_deref().unwrap_or("(not done: dry run)");
            writeln!(io::stdout(), "{}: {} is {id}", report.outcome, report.name)?;
            Ok(())
        }
    }
}

fn order(
    args: &PublishArgs,
    provider: &ProviderName,
    id: &str,
    format: &Format,
    digests: &Digests,
) -> anyhow::Result<UploadOrder> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("{}-{:.0}", args.image, now().as_secs().floor()),
    };
    let build = BuildId::from_u128(Uuid::new_v4().as_u128());
    Ok(UploadOrder {
        upload: publication_key(&args.image, provider, build)?,
        name: name.into(),
        file: args.file.clone(),
        format: format.as_str().into(),
        md5: digests.md5.clone(),
        sha256: digests.sha256.clone(),
        metadata: args.properties.iter().cloned().collect(),
        marks: args.tags.iter().map(|tag| tag.as_str().into()).collect(),
        tags: args.publisher.tags(&args.image, id),
        // An earlier run of the job may have begun it.
        first_attempt: false,
    })
}

/// Detects the format from the file's content: with a wrong format, machines may not boot.
fn format(args: &PublishArgs) -> anyhow::Result<Format> {
    let path = args.file.display();
    let metadata =
        std::fs::metadata(&args.file).with_context(|| format!("failed to read {path}"))?;
    ensure!(
        metadata.is_file() && metadata.len() > 0,
        "{path} is empty or not a regular file"
    );
    let ending = args.file.extension().and_then(|ending| ending.to_str());
    let said = args
        .file_format
        .as_deref()
        .or(ending.filter(|ending| *ending != "img"));
    let said =
        said.with_context(|| format!("unknown format of {path}; set it with --file-format"))?;
    let format: Format = said.parse()?;
    ensure!(
        format.as_str() != "raw" || !begins_with(&args.file, b"QFI\xfb")?,
        "{path} is not raw but qcow2"
    );
    inspect(&args.file, &format)?;
    Ok(format)
}

fn begins_with(path: &Path, magic: &[u8]) -> anyhow::Result<bool> {
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| format!("failed to read {}", path.display()))?;
    file.take(magic.len() as u64).read_to_end(&mut head)?;
    Ok(head == magic)
}

/// Returns whether an earlier run of this job has uploaded the image completely.
async fn is_complete(
    images: &dyn Images,
    cloud: &str,
    order: &UploadOrder,
) -> anyhow::Result<bool> {
    let images = images.list_images().await;
    let images = images.with_context(|| format!("failed to list the images of {cloud}"))?;
    Ok(images
        .iter()
        .any(|image| image.tags() == order.tags && image.status == ImageStatus::Active))
}

async fn upload(
    cloud: &CommandCloud,
    order: &UploadOrder,
    limit: Duration,
) -> anyhow::Result<UploadedImage> {
    let stop = signals::stop()?;
    let progress = Progress::default();
    let uploaded = retried::upload(&*cloud.driver, order, &progress);
    let outcome = tokio::select! {
        outcome = timeout(limit, uploaded) => outcome,
        never = show(&progress) => match never {},
        () = stop.cancelled() => Ok(Err(Error::permanent("interrupted"))),
    };
    let error = match outcome {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => anyhow::Error::from(error),
        Err(_) => anyhow!("timed out after {} seconds", limit.as_secs()),
    };
    if let Some(external_id) = progress.external_id() {
        clean_up(cloud, order, external_id).await;
    }
    Err(error.context(format!(
        "failed to publish {} in {}",
        order.name, cloud.name
    )))
}

async fn clean_up(cloud: &CommandCloud, order: &UploadOrder, external_id: ExternalId) {
    let target = ImageTarget {
        upload: order.upload.clone(),
        external_id: Some(external_id.clone()),
    };
    let removed = retried::delete_image(&*cloud.driver, &target);
    let removed = timeout(CLEANUP_LIMIT, removed).await;
    if !matches!(removed, Ok(Ok(()))) {
        tracing::warn!(
            %external_id, cloud = %cloud.name,
            "failed to delete the incomplete image; `nodeyard image leaks` finds it"
        );
    }
}

/// Shows the progress in one line, on a terminal.
async fn show(progress: &Progress) -> Infallible {
    let mut reported = progress.subscribe();
    loop {
        if reported.changed().await.is_err() {
            return pending().await;
        }
        let bytes = reported.borrow_and_update().bytes;
        if bytes.total == 0 {
            continue;
        }
        if io::stderr().is_terminal() {
            let percent = u128::from(bytes.sent) * 100 / u128::from(bytes.total);
            let _unimportant = write!(
                io::stderr(),
                "\r\x1b[K{percent} % of {} MB",
                bytes.total >> 20
            );
        }
    }
}
