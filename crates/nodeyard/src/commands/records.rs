//! `nodeyard status`, and `ls` and `show` for all kinds of records.
//!
//! Records are read from the store, so no launcher has to run. Each becomes an [`RecordEntry`], from which tables, documents
//! and `show` are rendered. Leases and scopes belong to tenants and come from the API instead. API instead.

mod capacity;
mod entry;
mod images;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use nodeyard_config::Config;
use nodeyard_model::now;
use nodeyard_store::registry::Registry;
use serde_json::{Map, Value};

use crate::context::CommandContext;
use crate::output;
use crate::store_access::{self, TargetArgs};

pub(crate) use capacity::node;
pub(crate) use entry::{RecordEntry, span};

/// The interval of `--watch`.
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

    /// The fields that are columns of `ls`; long texts come last.
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Node => &["id", "state", "age", "labels", "pool", "address", "request"],
            Self::Request => &["id", "state", "age", "requestor", "labels", "nodes"],
            Self::Label => &[
                "name",
                "ready",
                "building",
                "in_use",
                "waiting",
                "oldest_wait",
                "pools",
            ],
            Self::Pool => &["id", "launcher", "state", "paused", "labels"],
            Self::Provider => &["name", "driver", "quota", "trouble"],
            Self::Image => &["name", "state", "builds", "age", "uploads", "trouble"],
            Self::Build => &["id", "state", "age", "builder", "formats"],
            Self::Upload => &["id", "state", "age", "external_id"],
            Self::Worker => &["name", "kind", "state", "version"],
        }
    }

    /// The columns in `status`, which has several tables.
    fn overview(self) -> &'static [&'static str] {
        match self {
            Self::Label => &[
                "name",
                "ready",
                "building",
                "in_use",
                "waiting",
                "oldest_wait",
            ],
            other => other.columns(),
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
    Ls(WatchArgs),
    /// Show one
    Show {
        /// As in the first column of `ls`, or its beginning
        id: String,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// Print again every two seconds, until interrupted
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

/// Runs `ls` or `show` of one kind.
pub(crate) async fn run(
    kind: RecordKind,
    args: RecordArgs,
    context: &CommandContext,
) -> anyhow::Result<()> {
    on_target(kind, &args.target, args.command, context).await
}

pub(crate) async fn on_target(
    kind: RecordKind,
    target: &TargetArgs,
    command: RecordCommand,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let config = context.load()?;
    store_access::with_registry(target, context, async |registry| match command {
        RecordCommand::Ls(watch) => {
            repeat(&watch, async || {
                let entries = entries(kind, registry, config.as_deref()).await?;
                if context.format.is_document() {
                    return document(&entries, &watch, context);
                }
                watch.clear_screen()?;
                table(kind, kind.columns(), &entries)
            })
            .await
        }
        RecordCommand::Show { id } => {
            let entry = find(kind, &id, registry, config.as_deref()).await?;
            show(&entry, context)
        }
    })
    .await
}

/// Runs `status`.
pub(crate) async fn status(args: StatusArgs, context: &CommandContext) -> anyhow::Result<()> {
    let config = context.load()?;
    store_access::with_registry(&args.target, context, async |registry| {
        repeat(&args.watch, async || {
            let mut found = Vec::new();
            for kind in [RecordKind::Label, RecordKind::Provider, RecordKind::Image] {
                found.push((kind, entries(kind, registry, config.as_deref()).await?));
            }
            if context.format.is_document() {
                let mut lists = Map::new();
                for (kind, entries) in &found {
                    lists.insert(format!("{}s", kind.name()), serde_json::to_value(entries)?);
                }
                return document(&lists, &args.watch, context);
            }
            args.watch.clear_screen()?;
            for (number, (kind, entries)) in found.iter().enumerate() {
                if number > 0 {
                    writeln!(io::stdout())?;
                }
                table(*kind, kind.overview(), entries)?;
            }
            Ok(())
        })
        .await
    })
    .await
}

impl WatchArgs {
    /// Clears the terminal before the next output.
    pub(crate) fn clear_screen(&self) -> io::Result<()> {
        if self.watch && io::stdout().is_terminal() {
            write!(io::stdout(), "\x1b[H\x1b[2J")?;
        }
        Ok(())
    }
}

/// Runs `work` once, or repeatedly with `--watch`.
pub(crate) async fn repeat(
    watch: &WatchArgs,
    mut work: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        work().await?;
        if !watch.watch {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Prints one document, or one of a stream.
pub(crate) fn document(
    value: &impl serde::Serialize,
    watch: &WatchArgs,
    context: &CommandContext,
) -> anyhow::Result<()> {
    match watch.watch {
        true => output::stream(value, context.format),
        false => output::document(value, context.format),
    }
}

fn table(kind: RecordKind, columns: &[&str], entries: &[RecordEntry]) -> anyhow::Result<()> {
    if entries.is_empty() {
        return output::none(kind.name());
    }
    let headings = columns.iter().map(|column| match *column {
        "id" | "name" => kind.name().to_uppercase(),
        column => column.replace('_', "-").to_uppercase(),
    });
    let rows = entries.iter().map(|entry| entry.cells(columns));
    output::rows(headings.collect(), rows.collect())
}

/// Returns the entry with this id, or with the only id that starts like this.
pub(crate) async fn find(
    kind: RecordKind,
    id: &str,
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<RecordEntry> {
    let mut found = entries(kind, registry, config).await?;
    if let Some(exact) = found.iter().position(|entry| entry.id() == id) {
        return Ok(found.swap_remove(exact));
    }
    found.retain(|entry| entry.id().starts_with(id));
    let name = kind.name();
    match (found.pop(), found.len()) {
        (Some(entry), 0) => Ok(entry),
        (None, _) => bail!("no {name} {id}; `nodeyard {name} ls` lists them"),
        (Some(_), others) => bail!("{id} is ambiguous: {} {name}s start with it", others + 1),
    }
}

/// Prints every field of an entry.
pub(crate) fn show(entry: &RecordEntry, context: &CommandContext) -> anyhow::Result<()> {
    if context.format.is_document() {
        return output::document(entry, context.format);
    }
    Ok(io::stdout().write_all(entry.text().as_bytes())?)
}

async fn entries(
    kind: RecordKind,
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<RecordEntry>> {
    match kind {
        RecordKind::Node => capacity::nodes(registry).await,
        RecordKind::Request => capacity::requests(registry).await,
        RecordKind::Label => capacity::labels(registry, config).await,
        RecordKind::Pool => capacity::pools(registry).await,
        RecordKind::Provider => capacity::providers(registry, config).await,
        RecordKind::Worker => capacity::workers(registry).await,
        RecordKind::Image => images::images(registry, config).await,
        RecordKind::Build => images::builds(registry).await,
        RecordKind::Upload => images::uploads(registry).await,
    }
}

/// Returns the age in whole seconds.
fn age(since: nodeyard_model::Timestamp) -> Value {
    Value::from(now().since(since).as_secs())
}
