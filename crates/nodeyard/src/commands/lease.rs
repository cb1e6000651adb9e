//! `nodeyard lease`: list, show, renew, wait for and release leases.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use nodeyard_model::{Timestamp, now};
use serde_json::{Value, json};

use crate::api_client::{ApiArgs, ApiClient, LeaseResponse, PageResponse};
use crate::commands::records::{self, WatchArgs};
use crate::commands::request::{LoginCommand, keep_alive};
use crate::context::CommandContext;
use crate::duration;
use crate::output::{self, OutputFormat};

/// The length of an id; shorter texts are prefixes.
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
        /// Include leases that have ended
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a lease and how to connect to its machines
    Show {
        /// The id, or its beginning
        lease: String,
        /// Print the machines' keys as lines of a known_hosts file, and nothing else
        #[arg(long)]
        known_hosts: bool,
    },
    /// Extend a lease from now on
    Renew {
        /// The id, or its beginning
        lease: String,
        /// The new duration, such as 30m; that of the request if absent
        #[arg(long = "lease", value_name = "TIME", value_parser = duration::parse)]
        duration: Option<Duration>,
    },
    /// Wait until a lease has its machines, show what it waits for, and renew it meanwhile
    Wait {
        /// The id, or its beginning
        lease: String,
    },
    /// Release machines, or cancel a waiting request
    Rm {
        /// The id, or its beginning
        lease: String,
        /// Release only this machine of the lease; may be repeated
        #[arg(long, value_name = "NODE")]
        node: Vec<String>,
    },
}

pub(crate) async fn run(args: LeaseArgs, context: &CommandContext) -> anyhow::Result<()> {
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
            let lease: LeaseResponse = client.post(&path, &body, None).await?;
            match context.format {
                OutputFormat::Json | OutputFormat::Yaml => output::document(&lease, context.format),
                OutputFormat::Table => {
                    let expires = lease.expires.as_deref().unwrap_or("now");
                    Ok(writeln!(io::stdout(), "lease {id} expires at {expires}")?)
                }
            }
        }
        LeaseCommand::Wait { lease } => {
            let lease = find(&client, &lease).await?;
            let lease = keep_alive::until_ready(&client, &lease).await?;
            ensure!(
                lease.is_active(),
                "lease {} has ended: {}",
                lease.id,
                lease.end_reason()
            );
            show(&lease, context)
        }
        LeaseCommand::Rm { lease, node } => {
            let lease = find(&client, &lease).await?;
            release(&client, &lease, &node, context).await
        }
    }
}

/// Reads all pages of a list.
pub(super) async fn pages<T: serde::de::DeserializeOwned>(
    client: &ApiClient,
    path: &str,
) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page: PageResponse<T> = client.get(&format!("{path}?limit=1000{cursor}")).await?;
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
    context: &CommandContext,
) -> anyhow::Result<()> {
    let mut leases: Vec<LeaseResponse> = pages(client, "/leases").await?;
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

/// Returns the time until then, in the largest unit that fits.
pub(super) fn left(until: &str) -> String {
    let Ok(end) = until.parse::<jiff::Timestamp>() else {
        return until.to_owned();
    };
    let left = Timestamp::from(SystemTime::from(end)).since(now());
    records::span(left.as_secs())
}

async fn find(client: &ApiClient, text: &str) -> anyhow::Result<LeaseResponse> {
    let hexadecimal = text.bytes().all(|b| b.is_ascii_hexdigit());
    ensure!(hexadecimal && !text.is_empty(), "invalid lease id {text:?}");
    if text.len() >= ID {
        return client.get(&format!("/leases/{text}")).await;
    }
    let mut found: Vec<LeaseResponse> = pages(client, "/leases").await?;
    found.retain(|lease| lease.id.starts_with(text));
    let lease = match &found[..] {
        [lease] => lease,
        [] => bail!("no lease {text}"),
        _ => bail!("{text} is ambiguous: {} leases start with it", found.len()),
    };
    client.get(&format!("/leases/{}", lease.id)).await
}

fn show(lease: &LeaseResponse, context: &CommandContext) -> anyhow::Result<()> {
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
        let login = match &node.connection {
            Some(_) => LoginCommand::to(node, None, None).map(|login| login.command_line()),
            None => Ok(node.state.clone()),
        };
        let login = login.unwrap_or_else(|error| error.to_string());
        writeln!(out, "{}-{}: {login}", node.label, node.id)?;
    }
    Ok(())
}

async fn release(
    client: &ApiClient,
    lease: &LeaseResponse,
    nodes: &[String],
    context: &CommandContext,
) -> anyhow::Result<()> {
    let path = format!("/leases/{}", lease.id);
    for node in nodes {
        let own = lease.nodes.iter().any(|own| own.id == *node);
        ensure!(own, "lease {} has no node {node}", lease.id);
        let path = format!("/nodes/{node}/release");
        let _: Value = client.post(&path, &json!({}), None).await?;
    }
    let lease: LeaseResponse = match nodes {
        [] => client.delete(&path).await?,
        _ => client.get(&path).await?,
    };
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&lease, context.format),
        OutputFormat::Table => Ok(()),
    }
}
