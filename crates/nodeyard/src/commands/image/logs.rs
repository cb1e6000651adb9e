//! The log of a build: from the worker that makes or holds the image, or from a file on this host.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use nodeyard_builder::jobs::{Failure, Function, ImageInfo, InfoJob, from_payload, to_payload};
use nodeyard_builder::steward::Functions;
use nodeyard_config::Config;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{JobClient, JobClientOptions, JobEvent, JobRequest};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildKey, ImageName};
use nodeyard_store::registry::Registry;
use tokio::time::{sleep, timeout};

use crate::commands::build;
use crate::commands::builder::job_server;
use crate::context::Context;

/// For each job server to say who answers what.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a worker may say nothing. One that waits for a log to go on does so for half a minute.
const SILENCE: Duration = Duration::from_secs(120);

/// Before a worker is asked how the log goes on: it may be too busy with others to wait for that.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct BuildLogsArgs {
    /// `<image>-<build id>` or its beginning, or an image for its newest build
    build: String,
    /// Go on until the build has ended
    #[arg(short, long)]
    follow: bool,
}

pub(in crate::commands) async fn print(
    registry: &Registry,
    context: &Context,
    args: &BuildLogsArgs,
) -> anyhow::Result<()> {
    let config = context.require()?;
    let key = find(registry, &args.build).await?;
    if from_worker(&config, &key, args.follow).await? || from_file(&config, &key)? {
        return Ok(());
    }
    bail!(
        "no worker answers for {}-{}, and its log is not in {} on this host",
        key.image,
        key.build,
        config.build_log_dir
    )
}

/// Returns the newest build of an image, or the build with this name.
async fn find(registry: &Registry, text: &str) -> anyhow::Result<BuildKey> {
    if let Ok(image) = text.parse::<ImageName>() {
        let builds = registry.images().builds(&image).await?;
        let newest = builds.into_iter().max_by_key(|(_, build)| build.stat.czxid);
        if let Some((key, _)) = newest {
            return Ok(key);
        }
    }
    build::find(registry, text).await
}

/// False if nobody answers for the build.
///
/// A worker tells a log that goes on for a while, and where; then it is asked again.
async fn from_worker(config: &Config, key: &BuildKey, follow: bool) -> anyhow::Result<bool> {
    let endpoints = job_server::known(config)?;
    let function = Function::Info(ImageId::from(key.build));
    let mut from = None;
    loop {
        let functions = Functions::ask(&endpoints, PATIENCE).await;
        let server = functions.server_of(&function);
        let Some(endpoint) = server.and_then(|server| endpoints.get(server)) else {
            if from.is_some() {
                bail!("the log went on, but no worker answers for the build any more");
            }
            return Ok(false);
        };
        let asked = InfoJob {
            log_from: Some(from.unwrap_or(0)),
            follow,
        };
        from = tell(endpoint, &function, &asked).await?;
        if from.is_none() {
            return Ok(true);
        }
        sleep(PAUSE).await;
    }
}

/// Prints what a worker tells, and returns where the log goes on, if it does.
async fn tell(
    endpoint: &GearmanEndpoint,
    function: &Function,
    asked: &InfoJob,
) -> anyhow::Result<Option<u64>> {
    let client = JobClient::new(JobClientOptions::new(vec![endpoint.clone()]));
    let request = JobRequest::new(function.to_string(), to_payload(asked));
    let mut job = client.submit(&request).await?;
    let mut out = io::stdout();
    // The last data of a job that fails says why. What looks like that is no part of the log unless something follows.
    let mut held = Bytes::new();
    loop {
        let event = timeout(SILENCE, job.next()).await;
        let event = event.with_context(|| {
            format!("the worker does not answer, by way of the job server {endpoint}")
        })?;
        match event.unwrap_or(JobEvent::ConnectionLost) {
            JobEvent::Data(data) => {
                out.write_all(&std::mem::take(&mut held))?;
                match Failure::from_data(&data) {
                    Some(_) => held = data,
                    None => out.write_all(&data)?,
                }
                out.flush()?;
            }
            JobEvent::Complete(data) => {
                out.write_all(&held)?;
                let info: ImageInfo = from_payload(function, &data)?;
                return Ok(info.log_next);
            }
            JobEvent::Fail => match Failure::from_data(&held) {
                Some(failure) => bail!("the worker has not told the whole log: {failure}"),
                None => bail!("the worker was lost before it had told the whole log"),
            },
            JobEvent::Exception(text) => {
                let text = String::from_utf8_lossy(&text);
                bail!("the worker has not told the whole log: {text}");
            }
            JobEvent::ConnectionLost => bail!("the job server {endpoint} was lost"),
            JobEvent::Status { .. } | JobEvent::Warning(_) => {}
        }
    }
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
