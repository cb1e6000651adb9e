//! `nodeyard explain`: asks a running launcher why a request waits.

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
use nodeyard_model::RequestId;

use crate::context::Context;
use crate::output::Format;

/// No explanation is nearly as long; it keeps a stranger on that port from filling our memory.
const MAX_ANSWER: usize = 4 << 20;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    request: RequestId,
    /// The launcher's web server; without it the configured port on this host
    #[arg(long)]
    url: Option<String>,
}

pub(crate) async fn run(args: ExplainArgs, context: &Context) -> anyhow::Result<()> {
    let url = match args.url {
        Some(url) => url,
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
    if status == StatusCode::NOT_FOUND {
        bail!(
            "request {} is not there: it was served, cancelled, or never made",
            args.request
        );
    }
    if !status.is_success() {
        bail!(
            "{page} answered {status}: {}",
            String::from_utf8_lossy(&body).trim()
        );
    }
    io::stdout().write_all(&body)?;
    Ok(())
}
