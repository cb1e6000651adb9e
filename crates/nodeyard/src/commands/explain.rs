//! `nodeyard explain`: why a request, lease, node or image is in its state.
//!
//! A running launcher is asked first, then the store, which keeps explanations of requests that have ended.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Method, StatusCode};
use nodeyard_builder::steward;
use nodeyard_launcher::history;
use nodeyard_lease::Lease;
use nodeyard_model::layout::LEASES;
use nodeyard_model::{ImageName, NodeId, RequestId};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Tree, TreePath};
use serde_json::Value;

use crate::api_client::HttpEndpoint;
use crate::commands::image;
use crate::commands::records::{self, RecordEntry};
use crate::context::CommandContext;
use crate::output::{self, OutputFormat};
use crate::store_access::{self, TargetArgs};

/// The maximum size of a response, to bound memory if another service listens on that port.
const MAX_ANSWER: usize = 4 << 20;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A request, a lease or its beginning, a node, or an image
    #[arg(value_name = "ID")]
    what: String,
    /// The launcher's web server; without it the configured port on this host
    #[arg(long)]
    url: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

pub(crate) async fn run(args: ExplainArgs, context: &CommandContext) -> anyhow::Result<()> {
    if let Ok(request) = args.what.parse() {
        let explanation = explain(request, &args, context).await?;
        return print(&explanation, context);
    }
    let holder = store_access::with_registry(&args.target, context, async |registry| {
        if let Some(holder) = find_holder(registry, &args.what).await? {
            return Ok(Some(holder));
        }
        let image = args.what.parse::<ImageName>().ok();
        let config = context.require()?;
        let known = steward::known_images(registry, &config).await?;
        let image = image.filter(|image| known.contains(image));
        let what = &args.what;
        let image = image.with_context(|| format!("no request, lease, node or image {what}"))?;
        image::why::explain(registry, context, Some(image)).await?;
        Ok(None)
    });
    match holder.await? {
        Some((entry, request)) => with_request(entry, request, &args, context).await,
        None => Ok(()),
    }
}

/// Returns the node or the lease with this id, and its request.
async fn find_holder(
    registry: &Registry,
    text: &str,
) -> anyhow::Result<Option<(RecordEntry, Option<RequestId>)>> {
    if let Ok(id) = text.parse::<NodeId>()
        && let Some(node) = registry.nodes().get(id).await?
    {
        let entry = records::node(registry, id, &node.value).await?;
        return Ok(Some((entry, node.value.request())));
    }
    find_lease(&**registry.tree(), text).await
}

/// Prints an entry, and why its request is in its state where that is still known.
async fn with_request(
    mut entry: RecordEntry,
    request: Option<RequestId>,
    args: &ExplainArgs,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let explanation = match request {
        Some(request) => explain(request, args, context).await.ok(),
        None => None,
    };
    if context.format.is_document() {
        let explanation = match &explanation {
            Some(json) => serde_json::from_slice(json)?,
            None => Value::Null,
        };
        entry.push("explanation", explanation);
        return records::show(&entry, context);
    }
    let mut out = io::stdout().lock();
    out.write_all(entry.text().as_bytes())?;
    if let Some(text) = explanation {
        writeln!(out)?;
        out.write_all(&text)?;
    }
    Ok(())
}

/// Returns the lease with this id, or with the only id that starts like this, and its request.
async fn find_lease(
    tree: &dyn Tree,
    text: &str,
) -> anyhow::Result<Option<(RecordEntry, Option<RequestId>)>> {
    let leases = match tree.list(&TreePath::new(LEASES)?).await {
        Err(error) if error.is_no_node() => Vec::new(),
        leases => leases?,
    };
    let found = leases.into_iter().filter(|(id, _)| id.starts_with(text));
    let found: Vec<_> = found.collect();
    let (id, record) = match &found[..] {
        [] => return Ok(None),
        [found] => found,
        _ => bail!("{text} is ambiguous: {} leases start with it", found.len()),
    };
    let lease: Lease = serde_json::from_slice(&record.data)
        .with_context(|| format!("failed to read the record of lease {id}"))?;
    let labels = lease.spec.labels.iter().map(ToString::to_string);
    let nodes = lease.nodes.iter().map(|leased| leased.node.to_string());
    let end = lease.end.as_ref().map(|end| match &end.text {
        Some(text) => format!("{}: {text}", end.cause),
        None => end.cause.to_string(),
    });
    let entry = RecordEntry::new(vec![
        ("lease", Value::from(&**id)),
        ("phase", Value::from(lease.phase.to_string())),
        ("labels", labels.collect()),
        ("requestor", Value::from(&*lease.requestor)),
        ("request", lease.request.map(|id| id.to_string()).into()),
        ("nodes", nodes.collect()),
        ("end", end.into()),
    ]);
    Ok(Some((entry, lease.request)))
}

fn print(explanation: &[u8], context: &CommandContext) -> anyhow::Result<()> {
    if context.format == OutputFormat::Yaml {
        let value: Value = serde_json::from_slice(explanation)?;
        return output::document(&value, context.format);
    }
    Ok(io::stdout().write_all(explanation)?)
}

/// Returns the explanation of a request: text, or JSON for documents.
async fn explain(
    request: RequestId,
    args: &ExplainArgs,
    context: &CommandContext,
) -> anyhow::Result<Bytes> {
    let asked = ask(request, args, context).await;
    if let Ok(Some(answer)) = asked {
        return Ok(answer);
    }
    if let Some(stored) = look_up(request, args, context).await? {
        return Ok(stored);
    }
    match asked {
        Err(error) => Err(error),
        Ok(_) => bail!(
            "no request {request}, and no outcome of it: it was fulfilled long ago, or never existed"
        ),
    }
}

/// Returns the explanation of a running launcher; None if it does not know the request.
async fn ask(
    request: RequestId,
    args: &ExplainArgs,
    context: &CommandContext,
) -> anyhow::Result<Option<Bytes>> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => {
            let port = context.load()?.map_or(8005, |config| config.webapp.port.0);
            format!("http://127.0.0.1:{port}")
        }
    };
    let kind = match context.format {
        OutputFormat::Json | OutputFormat::Yaml => "application/json",
        OutputFormat::Table => "text/plain",
    };
    let endpoint = HttpEndpoint::new(&url, None).with_context(|| format!("invalid URL {url}"))?;
    let path = format!("/explain/{request}");
    let asked = endpoint
        .request(Method::GET, &path)
        .header(ACCEPT, kind)
        .body(Full::default())?;
    let unreachable = || match &args.url {
        Some(url) => format!("no launcher responds at {url}"),
        None => {
            let note = context.config_note();
            format!("no launcher responds at {url}; name its web server with --url ({note})")
        }
    };
    let answer = tokio::time::timeout(PATIENCE, endpoint.exchange(asked, MAX_ANSWER))
        .await
        .with_context(unreachable)?
        .with_context(unreachable)?;
    let (status, body) = (answer.status(), answer.into_body());
    match status {
        StatusCode::NOT_FOUND => Ok(None),
        status if status.is_success() => Ok(Some(body)),
        status => bail!(
            "{}{path} responded with {status}: {}",
            url.trim_end_matches('/'),
            String::from_utf8_lossy(&body).trim()
        ),
    }
}

/// Returns the stored outcome of the request, if there is one and the store is accessible.
async fn look_up(
    request: RequestId,
    args: &ExplainArgs,
    context: &CommandContext,
) -> anyhow::Result<Option<Bytes>> {
    // Without a store there is no stored outcome.
    let Ok(access) = store_access::open(&args.target, context).await else {
        return Ok(None);
    };
    let stored = history::read(&*access.tree, request).await;
    access.close().await;
    let Some(ended) = stored? else {
        return Ok(None);
    };
    Ok(Some(match context.format {
        OutputFormat::Table => ended.to_string().into(),
        // Ends with a newline, like the launcher's response.
        OutputFormat::Json | OutputFormat::Yaml => {
            let mut text = serde_json::to_vec_pretty(&ended)?;
            text.push(b'\n');
            text.into()
        }
    }))
}
