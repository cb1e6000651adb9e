//! `nodeyard explain`: why a request waits, or what became of it.
//!
//! A running launcher knows best. What it has forgotten, or would have known before a restart, may be in the store.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use nodeyard_launcher::history;
use nodeyard_model::RequestId;

use crate::context::Context;
use crate::output::{self, Format};
use crate::store_access::{self, TargetArgs};

/// No explanation is nearly as long; it keeps a stranger on that port from filling our memory.
const MAX_ANSWER: usize = 4 << 20;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    request: RequestId,
    /// The launcher's web server; without it the configured port on this host
    #[arg(long)]
    url: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

pub(crate) async fn run(args: ExplainArgs, context: &Context) -> anyhow::Result<()> {
    let asked = ask(&args, context).await;
    if let Ok(Some(answer)) = asked {
        io::stdout().write_all(&answer)?;
        return Ok(());
    }
    if look_up(&args, context).await? {
        return Ok(());
    }
    match asked {
        Err(error) => Err(error),
        Ok(_) => bail!(
            "request {} is not there, and nothing is kept of it: it ended well and long ago, or was never made",
            args.request
        ),
    }
}

/// What a launcher says; none if it does not know the request.
async fn ask(args: &ExplainArgs, context: &Context) -> anyhow::Result<Option<Bytes>> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => {
            let port = context.load()?.map_or(8005, |config| config.webapp.port.0);
            format!("http://127.0.0.1:{port}")
        }
    };
    let kind = match context.format {
        Format::Json => "application/json",
        Format::Table => "text/plain",
    };
    let page = format!("{}/explain/{}", url.trim_end_matches('/'), args.request);
    let asked = Request::get(&page)
        .header(ACCEPT, kind)
        .body(Empty::<Bytes>::new());
    let asked = asked.with_context(|| format!("{url} is not the address of a web server"))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let unreachable = || format!("no launcher answers at {url}; name its web server with --url");
    let answer = tokio::time::timeout(PATIENCE, client.request(asked))
        .await
        .with_context(unreachable)?
        .with_context(unreachable)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body
        .map_err(|error| anyhow::anyhow!(error))
        .with_context(unreachable)?
        .to_bytes();
    match status {
        StatusCode::NOT_FOUND => Ok(None),
        status if status.is_success() => Ok(Some(body)),
        status => bail!(
            "{page} answered {status}: {}",
            String::from_utf8_lossy(&body).trim()
        ),
    }
}

/// Prints what is stored of the request; false if nothing is, or there is no store to look into.
async fn look_up(args: &ExplainArgs, context: &Context) -> anyhow::Result<bool> {
    let Ok(access) = store_access::open(&args.target, context).await else {
        return Ok(false);
    };
    let stored = history::read(&*access.tree, args.request).await;
    access.close().await;
    let Some(ended) = stored? else {
        return Ok(false);
    };
    match context.format {
        Format::Json => output::json(&ended)?,
        Format::Table => write!(io::stdout(), "{ended}")?,
    }
    Ok(true)
}
