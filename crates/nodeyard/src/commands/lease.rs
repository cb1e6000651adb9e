//! `nodeyard lease`: leases from outside, wherever they were asked for.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use nodeyard_model::{Timestamp, now};
use serde_json::{Value, json};

use crate::api_client::{ApiArgs, ApiClient, Lease, Page};
use crate::commands::records::{self, WatchArgs};
use crate::commands::request::{Way, keep};
use crate::context::Context;
use crate::output::{self, Format};
use crate::span;

/// The length of an id; less is the beginning of one.
const ID: usize = 32;

#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
enum LeaseCommand {
    /// List leases
    Ls {
        /// Those that have ended, too
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a lease and how to reach its machines
    Show {
        /// The id, or its beginning
        lease: String,
        /// Print the machines' keys as lines of a known_hosts file, and nothing else
        #[arg(long)]
        known_hosts: bool,
    },
    /// Prolong a lease from now on
    Renew {
        /// The id, or its beginning
        lease: String,
        /// For how long, such as 30m; the time it was asked for with if absent
        #[arg(long = "lease", value_name = "TIME", value_parser = span::parse)]
        duration: Option<Duration>,
    },
    /// Stay until a lease has its machines, say what it waits for, and renew it meanwhile
    Wait {
        /// The id, or its beginning
        lease: String,
    },
    /// Give machines back, or take back a request that waits
    Rm {
        /// The id, or its beginning
        lease: String,
        /// Only this machine of the lease; may be repeated
        #[arg(long, value_name = "NODE")]
        node: Vec<String>,
    },
}

pub(crate) async fn run(args: LeaseArgs, context: &Context) -> anyhow::Result<()> {
    let client = ApiClient::new(&args.api, context)?;
    match args.command {
        LeaseCommand::Ls { all, watch } => {
            records::repeat(&watch, async || list(&client, all, &watch, context).await).await
        }
        LeaseCommand::Show { lease, known_hosts } => {
            let lease = find(&client, &lease).await?;
            if known_hosts {
                for connection in lease
                    .nodes
                    .iter()
                    .filter_map(|node| node.connection.as_ref())
                {
                    write!(io::stdout(), "{}", connection.known_hosts())?;
                }
                return Ok(());
            }
            show(&lease, context)
        }
        LeaseCommand::Renew { lease, duration } => {
            let id = find(&client, &lease).await?.id;
            let body = match duration {
                Some(duration) => json!({ "duration": duration.as_secs() }),
                None => json!({}),
            };
            let path = format!("/leases/{id}/renew");
            let lease: Lease = client.post(&path, &body, None).await?;
            match context.format {
                Format::Json | Format::Yaml => output::document(&lease, context.format),
                Format::Table => {
                    let expires = lease.expires.as_deref().unwrap_or("it ends");
                    Ok(writeln!(io::stdout(), "lease {id} lasts until {expires}")?)
                }
            }
        }
        LeaseCommand::Wait { lease } => {
            let lease = find(&client, &lease).await?;
            let lease = keep::until_ready(&client, &lease).await?;
            ensure!(
                lease.is_active(),
                "lease {} is over: {}",
                lease.id,
                lease.why_over()
            );
            show(&lease, context)
        }
        LeaseCommand::Rm { lease, node } => {
            let lease = find(&client, &lease).await?;
            release(&client, &lease, &node, context).await
        }
    }
}

/// Everything that a list has, page by page.
pub(super) async fn pages<T: serde::de::DeserializeOwned>(
    client: &ApiClient,
    path: &str,
) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page: Page<T> = client.get(&format!("{path}?limit=1000{cursor}")).await?;
        all.extend(page.items);
        match page.next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(all),
        }
    }
}

async fn list(
    client: &ApiClient,
    all: bool,
    watch: &WatchArgs,
    context: &Context,
) -> anyhow::Result<()> {
    let mut leases: Vec<Lease> = pages(client, "/leases").await?;
    leases.retain(|lease| all || lease.phase != "ended");
    if context.format.is_document() {
        return records::document(&leases, watch, context);
    }
    watch.clear_screen()?;
    if leases.is_empty() {
        return output::none("lease");
    }
    let rows = leases.into_iter().map(|lease| {
        let nodes = lease.nodes.iter().filter(|node| node.is_leased());
        let nodes: Vec<&str> = nodes.map(|node| &*node.id).collect();
        [
            lease.id.clone(),
            lease.phase.clone(),
            lease.expires.as_deref().map_or_else(String::new, left),
            lease.labels.join(","),
            lease.requestor.clone(),
            lease.scope.clone().unwrap_or_else(|| "-".to_owned()),
            nodes.join(","),
        ]
    });
    let headings = [
        "LEASE",
        "PHASE",
        "EXPIRES",
        "LABELS",
        "REQUESTOR",
        "SCOPE",
        "NODES",
    ];
    output::table(headings, rows)
}

/// Returns how long it is until then, in the largest unit that fits.
pub(super) fn left(until: &str) -> String {
    let Ok(end) = until.parse::<jiff::Timestamp>() else {
        return until.to_owned();
    };
    let left = Timestamp::from(SystemTime::from(end)).since(now());
    records::span(left.as_secs())
}

async fn find(client: &ApiClient, text: &str) -> anyhow::Result<Lease> {
    let hexadecimal = text.bytes().all(|b| b.is_ascii_hexdigit());
    ensure!(hexadecimal && !text.is_empty(), "{text:?} is not a lease");
    if text.len() >= ID {
        return client.get(&format!("/leases/{text}")).await;
    }
    let mut found: Vec<Lease> = pages(client, "/leases").await?;
    found.retain(|lease| lease.id.starts_with(text));
    let lease = match &found[..] {
        [lease] => lease,
        [] => bail!("there is no lease {text}"),
        _ => bail!("{text} is the beginning of {} leases", found.len()),
    };
    client.get(&format!("/leases/{}", lease.id)).await
}

fn show(lease: &Lease, context: &Context) -> anyhow::Result<()> {
    if context.format.is_document() {
        return output::document(lease, context.format);
    }
    let mut out = io::stdout().lock();
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for (name, value) in [
        ("lease", lease.id.clone()),
        ("phase", lease.phase.clone()),
        ("labels", lease.labels.join(", ")),
        ("request", known(&lease.request)),
        ("tenant", known(&lease.tenant)),
        ("requestor", lease.requestor.clone()),
        ("scope", known(&lease.scope)),
        ("created", known(&lease.created)),
        ("expires", known(&lease.expires)),
        ("placement", lease.placement.clone()),
    ] {
        writeln!(out, "{name:<10} {value}")?;
    }
    if let Some(end) = &lease.end {
        writeln!(out, "{:<10} {}", "end", end.detail)?;
    }
    for node in &lease.nodes {
        let way = match &node.connection {
            Some(_) => Way::to(node, None, None).map(|way| way.login()),
            None => Ok(node.state.clone()),
        };
        let way = way.unwrap_or_else(|error| error.to_string());
        writeln!(out, "{}-{}: {way}", node.label, node.id)?;
    }
    Ok(())
}

async fn release(
    client: &ApiClient,
    lease: &Lease,
    nodes: &[String],
    context: &Context,
) -> anyhow::Result<()> {
    let path = format!("/leases/{}", lease.id);
    for node in nodes {
        let own = lease.nodes.iter().any(|own| own.id == *node);
        ensure!(own, "lease {} has no node {node}", lease.id);
        let path = format!("/nodes/{node}/release");
        let _: Value = client.post(&path, &json!({}), None).await?;
    }
    let lease: Lease = match nodes {
        [] => client.delete(&path).await?,
        _ => client.get(&path).await?,
    };
    match context.format {
        Format::Json | Format::Yaml => output::document(&lease, context.format),
        Format::Table => Ok(()),
    }
}
