//! Prints the log of a build, from the worker that has it or from a file on this host.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use nodeyard_builder::jobs::{Function, ImageInfo, InfoJob, JobFailure, from_payload, to_payload};
use nodeyard_builder::steward::RegisteredFunctions;
use nodeyard_config::Config;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{JobClient, JobClientOptions, JobEvent, JobRequest};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildKey, ImageName};
use nodeyard_store::registry::Registry;
use tokio::time::{sleep, timeout};

use crate::commands::build;
use crate::commands::builder::job_server;
use crate::context::CommandContext;

/// The timeout for listing the functions of a job server.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// The timeout for a message from a worker. A worker that follows a log waits half a minute for more.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The pause before a worker is asked for the rest of a log, because a busy worker does not wait for more.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct BuildLogsArgs {
    /// `<image>-<build id>` or its beginning, or an image for its newest build
    build: String,
    /// Follow the log until the build has ended
    #[arg(short, long)]
    follow: bool,
}

pub(in crate::commands) async fn print(
    registry: &Registry,
    context: &CommandContext,
    args: &BuildLogsArgs,
) -> anyhow::Result<()> {
    let config = context.require()?;
    let key = find(registry, &args.build).await?;
    if from_worker(&config, &key, args.follow).await? || from_file(&config, &key)? {
        return Ok(());
    }
    bail!(
        "no worker has {}-{}, and its log is not in {} on this host",
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

/// Prints the log from a worker. Returns false if no worker has the build.
///
/// A worker sends a part of a log in progress and the position after it, from which the next part is requested.
async fn from_worker(config: &Config, key: &BuildKey, follow: bool) -> anyhow::Result<bool> {
    let endpoints = job_server::find(config)?;
    let function = Function::Info(ImageId::from(key.build));
    let mut from = None;
    loop {
        let functions = RegisteredFunctions::fetch(&endpoints, LIST_TIMEOUT).await;
        let server = functions.find_server(&function);
        let Some(endpoint) = server.and_then(|server| endpoints.get(server)) else {
            if from.is_some() {
                bail!("lost the worker of the build before the end of the log");
            }
            return Ok(false);
        };
        let request_info = InfoJob {
            log_from: Some(from.unwrap_or(0)),
            follow,
        };
        from = print_part(endpoint, &function, &request_info).await?;
        if from.is_none() {
            return Ok(true);
        }
        sleep(PAUSE).await;
    }
}

/// Prints the part of the log that a worker sends. Returns the position of the next part, if there is one.
async fn print_part(
    endpoint: &GearmanEndpoint,
    function: &Function,
    request_info: &InfoJob,
) -> anyhow::Result<Option<u64>> {
    let client = JobClient::new(JobClientOptions::new(vec![endpoint.clone()]));
    let request = JobRequest::new(function.to_string(), to_payload(request_info));
    let mut job = client.submit(&request).await?;
    let mut out = io::stdout();
    // The last data of a failed job is the error. Data that looks like one is part of the log only if more data
    // follows.
    let mut held = Bytes::new();
    loop {
        let event = timeout(MESSAGE_TIMEOUT, job.next()).await;
        let event = event.with_context(|| {
            format!("timed out waiting for the worker, through job server {endpoint}")
        })?;
        match event.unwrap_or(JobEvent::ConnectionLost) {
            JobEvent::Data(data) => {
                out.write_all(&std::mem::take(&mut held))?;
                match JobFailure::from_data(&data) {
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
            JobEvent::Fail => match JobFailure::from_data(&held) {
                Some(failure) => bail!("failed to read the whole log: {failure}"),
                None => bail!("lost the worker before the end of the log"),
            },
            JobEvent::Exception(text) => {
                let text = String::from_utf8_lossy(&text);
                bail!("failed to read the whole log: {text}");
            }
            JobEvent::ConnectionLost => bail!("lost the connection to job server {endpoint}"),
            JobEvent::Status { .. } | JobEvent::Warning(_) => {}
        }
    }
}

fn from_file(config: &Config, key: &BuildKey) -> anyhow::Result<bool> {
    let name = format!("{}-{}.log", key.image, key.build);
    let path = Path::new(&config.build_log_dir).join(name);
    let mut file = match std::fs::File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file.with_context(|| format!("failed to read {}", path.display()))?,
    };
    io::copy(&mut file, &mut io::stdout())?;
    Ok(true)
}
