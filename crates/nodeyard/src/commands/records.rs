//! `nodeyard status`, and `ls` and `show` for nodes, requests, labels, pools, providers, builds, uploads and workers.
//!
//! Everything is read from the store, so no launcher has to run. Each kind of record becomes a list of [`Entry`]s; tables,
//! documents and `show` are made from these alone.

mod entry;
mod images;
mod supply;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use nodeyard_config::Config;
use nodeyard_lease::Lease;
use nodeyard_model::NodeId;
use nodeyard_store::registry::Registry;
use serde_json::{Map, Value};

use crate::commands::nodepool::now;
use crate::context::Context;
use crate::output;
use crate::store_access::{self, TargetArgs};

pub(crate) use entry::Entry;

/// Between two looks with `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);

/// The kinds of records that have `ls` and `show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Node,
    Request,
    Label,
    Pool,
    Provider,
    Image,
    Build,
    Upload,
    Worker,
}

impl RecordKind {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Request => "request",
            Self::Label => "label",
            Self::Pool => "pool",
            Self::Provider => "provider",
            Self::Image => "image",
            Self::Build => "build",
            Self::Upload => "upload",
            Self::Worker => "worker",
        }
    }

    /// The fields of an entry that are columns of `ls`.
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Node => &[
                "id", "state", "labels", "provider", "pool", "address", "request", "age",
            ],
            Self::Request => &["id", "state", "labels", "requestor", "nodes", "age"],
            Self::Label => &[
                "name",
                "ready",
                "building",
                "in-use",
                "waiting",
                "oldest-wait",
                "pools",
            ],
            Self::Pool => &["id", "launcher", "state", "paused", "labels"],
            Self::Provider => &["name", "driver", "nodes", "limit", "trouble"],
            Self::Image => &["name", "builds", "uploads", "age", "trouble"],
            Self::Build => &["id", "state", "formats", "builder", "age"],
            Self::Upload => &["id", "state", "image", "provider", "external-id", "age"],
            Self::Worker => &["name", "kind", "state", "version"],
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: RecordCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RecordCommand {
    /// List all
    Ls {
        /// Print the list again every two seconds, until interrupted
        #[arg(short, long)]
        watch: bool,
    },
    /// Show one
    Show {
        /// As in the first column of `ls`
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Print it again every two seconds, until interrupted
    #[arg(short, long)]
    watch: bool,
}

/// Runs `ls` or `show` of one kind.
pub(crate) async fn run(
    kind: RecordKind,
    args: RecordArgs,
    context: &Context,
) -> anyhow::Result<()> {
    on_target(kind, &args.target, args.command, context).await
}

pub(crate) async fn on_target(
    kind: RecordKind,
    target: &TargetArgs,
    command: RecordCommand,
    context: &Context,
) -> anyhow::Result<()> {
    match command {
        RecordCommand::Ls { watch } => look(&[kind], target, watch, context).await,
        RecordCommand::Show { id } => {
            let entry = find(kind, &id, target, context).await?;
            show(&entry, context)
        }
    }
}

/// Runs `status`.
pub(crate) async fn status(args: StatusArgs, context: &Context) -> anyhow::Result<()> {
    let kinds = [RecordKind::Label, RecordKind::Provider, RecordKind::Image];
    look(&kinds, &args.target, args.watch, context).await
}

/// Prints the entries of each kind, once or again and again.
async fn look(
    kinds: &[RecordKind],
    target: &TargetArgs,
    watch: bool,
    context: &Context,
) -> anyhow::Result<()> {
    let config = context.load()?;
    let access = store_access::open(target, context).await?;
    let registry = Registry::new(Arc::clone(&access.tree));
    let result = async {
        loop {
            let mut found = Vec::new();
            for kind in kinds {
                found.push((*kind, entries(*kind, &registry, config.as_deref()).await?));
            }
            print(&found, watch, context)?;
            if !watch {
                return Ok(());
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let result = result.await;
    access.close().await;
    result
}

/// Returns the one entry with this id.
pub(crate) async fn find(
    kind: RecordKind,
    id: &str,
    target: &TargetArgs,
    context: &Context,
) -> anyhow::Result<Entry> {
    let config = context.load()?;
    let access = store_access::open(target, context).await?;
    let registry = Registry::new(Arc::clone(&access.tree));
    let found = entries(kind, &registry, config.as_deref()).await;
    access.close().await;
    let found = found?.into_iter().find(|entry| entry.id() == id);
    let name = kind.name();
    found.with_context(|| format!("there is no {name} {id}; `nodeyard {name} ls` lists them"))
}

/// Prints every field of an entry.
pub(crate) fn show(entry: &Entry, context: &Context) -> anyhow::Result<()> {
    if context.format.is_document() {
        return output::document(entry, context.format);
    }
    Ok(io::stdout().write_all(entry.text().as_bytes())?)
}

async fn entries(
    kind: RecordKind,
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<Entry>> {
    match kind {
        RecordKind::Node => supply::nodes(registry).await,
        RecordKind::Request => supply::requests(registry).await,
        RecordKind::Label => supply::labels(registry, config).await,
        RecordKind::Pool => supply::pools(registry).await,
        RecordKind::Provider => supply::providers(registry, config).await,
        RecordKind::Worker => supply::workers(registry).await,
        RecordKind::Image => images::images(registry, config).await,
        RecordKind::Build => images::builds(registry).await,
        RecordKind::Upload => images::uploads(registry).await,
    }
}

fn print(found: &[(RecordKind, Vec<Entry>)], watch: bool, context: &Context) -> anyhow::Result<()> {
    if context.format.is_document() {
        let document = match found {
            [(_, only)] => serde_json::to_value(only)?,
            all => {
                let mut document = Map::new();
                for (kind, entries) in all {
                    document.insert(format!("{}s", kind.name()), serde_json::to_value(entries)?);
                }
                Value::Object(document)
            }
        };
        return match watch {
            true => output::stream(&document, context.format),
            false => output::document(&document, context.format),
        };
    }
    if watch && io::stdout().is_terminal() {
        write!(io::stdout(), "\x1b[H\x1b[2J")?;
    }
    for (number, (kind, entries)) in found.iter().enumerate() {
        if number > 0 {
            writeln!(io::stdout())?;
        }
        let columns = kind.columns();
        let headings = columns.iter().map(|column| match *column {
            "name" => kind.name().to_uppercase(),
            column => column.to_uppercase(),
        });
        let rows = entries.iter().map(|entry| entry.cells(columns));
        output::rows(headings.collect(), rows.collect())?;
    }
    Ok(())
}

/// Returns a node, and the request it is given to.
pub(crate) async fn node(
    id: NodeId,
    target: &TargetArgs,
    context: &Context,
) -> anyhow::Result<Entry> {
    find(RecordKind::Node, &id.to_string(), target, context).await
}

/// Whole seconds since then.
fn age(since: nodeyard_model::Timestamp) -> Value {
    Value::from(now().since(since).as_secs())
}

/// Returns a lease as its record has it.
pub(crate) fn lease(id: &str, lease: &Lease) -> Entry {
    let nodes: Vec<String> = lease
        .parts
        .iter()
        .map(|part| part.node.to_string())
        .collect();
    Entry::new(vec![
        ("lease", Value::from(id)),
        ("phase", Value::from(lease.phase.to_string())),
        ("requestor", Value::from(&*lease.requestor)),
        (
            "request",
            lease
                .request
                .map_or(Value::Null, |id| Value::from(id.to_string())),
        ),
        ("nodes", Value::from(nodes)),
    ])
}
