//! The log of a build: from the worker that makes or holds the image, or from a file on this host.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nodeyard_builder::jobs::{Function, InfoJob, to_payload};
use nodeyard_builder::steward::Functions;
use nodeyard_config::Config;
use nodeyard_gearman::client::{Client, ClientOptions, JobEvent, JobRequest};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildKey, ImageName};
use nodeyard_store::registry::Registry;

use crate::commands::builder::job_server;
use crate::commands::nodepool::images::build_key;
use crate::context::Context;

/// For each job server to say who answers what.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) async fn print(
    registry: &Registry,
    context: &Context,
    build: &str,
    follow: bool,
) -> anyhow::Result<()> {
    let config = context.load()?.context(
        "without a configuration it is not known where logs are; name one with --config",
    )?;
    let key = find(registry, build).await?;
    if from_worker(&config, &key, follow).await? || from_file(&config, &key)? {
        return Ok(());
    }
    bail!(
        "no worker answers for {}-{}, and its log is not in {} on this host",
        key.image,
        key.build,
        config.build_log_dir
    )
}

/// By its full name, or the newest of an image.
async fn find(registry: &Registry, text: &str) -> anyhow::Result<BuildKey> {
    let images = registry.images();
    if let Ok(key) = build_key(text) {
        return Ok(key);
    }
    let image: ImageName = text.parse()?;
    let builds = images.builds(&image).await?;
    let newest = builds.into_iter().max_by(|(_, a), (_, b)| {
        a.value
            .state_time
            .as_secs()
            .total_cmp(&b.value.state_time.as_secs())
    });
    let (key, _) = newest.with_context(|| {
        format!("there is no build of {image}; `nodeyard image builds` lists those there are")
    })?;
    Ok(key)
}

/// False if nobody answers for the build.
async fn from_worker(config: &Config, key: &BuildKey, follow: bool) -> anyhow::Result<bool> {
    let endpoints = job_server::known(config)?;
    let function = Function::Info(ImageId::from(key.build));
    let functions = Functions::ask(&endpoints, PATIENCE).await;
    if !functions.answers(&function) {
        return Ok(false);
    }
    let asked = InfoJob {
        log_from: Some(0),
        follow,
    };
    let client = Client::new(ClientOptions::new(endpoints));
    let request = JobRequest::new(function.to_string(), to_payload(&asked));
    let mut job = client.submit(&request).await?;
    let mut out = io::stdout();
    while let Some(event) = job.next().await {
        match event {
            JobEvent::Data(data) => {
                out.write_all(&data)?;
                out.flush()?;
            }
            JobEvent::Complete(_) => return Ok(true),
            other if other.is_end() => bail!("the worker has not told the whole log: {other:?}"),
            _ => {}
        }
    }
    Ok(true)
}

fn from_file(config: &Config, key: &BuildKey) -> anyhow::Result<bool> {
    let name = format!("{}-{}.log", key.image, key.build);
    let path = Path::new(&config.build_log_dir).join(name);
    let mut file = match std::fs::File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file.with_context(|| format!("cannot read {}", path.display()))?,
    };
    io::copy(&mut file, &mut io::stdout())?;
    Ok(true)
}
