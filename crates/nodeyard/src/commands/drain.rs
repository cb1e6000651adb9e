//! `nodeyard drain` and `undrain`: start, list and end drains.
//!
//! Drains are records in the store, so this works from any host, whether or not a launcher runs.

mod report;

use std::time::Duration;

use anstream::{eprintln, println};
use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use nodeyard_model::{Label, ProviderName};
use nodeyard_operations::drain::DrainScope;
use nodeyard_operations::drain::{self, DrainSnapshot};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Tree, TreePath};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::context::CommandContext;
use crate::exit::CommandOutcome;
use crate::output::{self, OutputFormat};
use crate::progress_line::ProgressLine;
use crate::store_access;
use report::DrainReport;

/// The minimum time between two checks. A drain must be found complete twice in a row, because a launcher may have
/// accepted a request just before it noticed the drain.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum time between two checks, in case a change was missed.
const SAFETY: Duration = Duration::from_secs(30);
/// How long launchers may take to notice the drain before they are reported.
const NOTICE: Duration = Duration::from_secs(3);

pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  in force, and nothing is in progress any more
  1  failed; the error is on standard error
  2  the command line is wrong
  3  in force, but something is still in progress";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    target: store_access::TargetArgs,
    /// Wait until nothing is in progress any more, or for so many seconds
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf")]
    wait: Option<f64>,
    #[command(subcommand)]
    command: DrainCommand,
}

#[derive(Debug, Subcommand)]
enum DrainCommand {
    #[command(flatten)]
    Begin(DrainTargetArgs),
    /// List the drains in force and what is left of each
    Ls,
}

#[derive(Debug, Args)]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    target: store_access::TargetArgs,
    #[command(subcommand)]
    scope: DrainTargetArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum DrainTargetArgs {
    /// All pools of the launchers on a host
    Launcher {
        /// As components are registered: without the domain
        host: String,
    },
    /// All pools of a provider, on all launchers
    Provider { name: ProviderName },
    /// One pool of a provider
    Pool {
        /// `<provider>/<pool>`
        #[arg(value_name = "PROVIDER/POOL", value_parser = pool)]
        pool: DrainScope,
    },
    /// Requests with a label wait
    Label { label: Label },
}

fn pool(text: &str) -> Result<DrainScope, String> {
    let (provider, pool) = text
        .split_once('/')
        .filter(|(_, pool)| !pool.is_empty())
        .ok_or("expected <provider>/<pool>, as in `cloud/main`")?;
    let provider = ProviderName::new(provider).map_err(|error| error.to_string())?;
    Ok(DrainScope::Pool(pool.into(), provider))
}

impl From<DrainTargetArgs> for DrainScope {
    fn from(args: DrainTargetArgs) -> Self {
        match args {
            DrainTargetArgs::Launcher { host } => DrainScope::Launcher(host.into()),
            DrainTargetArgs::Provider { name } => DrainScope::Provider(name),
            DrainTargetArgs::Pool { pool } => pool,
            DrainTargetArgs::Label { label } => DrainScope::Label(label),
        }
    }
}

pub(crate) async fn run(
    args: DrainArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let limit = match args.wait {
        None => None,
        Some(seconds) => match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => Some(Some(limit)),
            Err(_) if seconds == f64::INFINITY => Some(None),
            Err(_) => bail!("--wait={seconds} is not a number of seconds"),
        },
    };
    store_access::with_registry(&args.target, context, async |registry| match args.command {
        DrainCommand::Begin(scope) => begin(registry, scope.into(), limit, context.format).await,
        DrainCommand::Ls => list(registry, limit, context.format).await,
    })
    .await
}

pub(crate) async fn undrain(args: UndrainArgs, context: &CommandContext) -> anyhow::Result<()> {
    let scope = DrainScope::from(args.scope);
    let ended = store_access::with_registry(&args.target, context, async |registry| {
        Ok(drain::end(&**registry.tree(), &scope).await?)
    });
    ensure!(
        ended.await?,
        "{scope} is not drained; see `nodeyard drain ls`"
    );
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => {
            let ended = json!({"scope": scope.to_string(), "drained": false});
            output::document(&ended, context.format)?;
        }
        OutputFormat::Table => println!("{scope} accepts requests again"),
    }
    Ok(())
}

/// How long to wait for completion: not at all, for a time, or without limit.
type WaitLimit = Option<Option<Duration>>;

async fn begin(
    registry: &Registry,
    scope: DrainScope,
    limit: WaitLimit,
    format: OutputFormat,
) -> anyhow::Result<CommandOutcome> {
    drain::begin(&**registry.tree(), &scope).await?;
    let mut reports = match limit {
        Some(limit) => wait(registry, &[&scope], limit).await?,
        None => until_noticed(registry, &scope).await?,
    };
    let Some(report) = reports.pop() else {
        bail!("the drain of {scope} was ended meanwhile");
    };
    if report.remaining.pools.is_empty() {
        eprintln!(
            "no running launcher has {scope}; the drain applies to launchers that start later"
        );
    }
    match format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&report, format)?,
        OutputFormat::Table => report.print()?,
    }
    Ok(outcome(&[report]))
}

async fn list(
    registry: &Registry,
    limit: WaitLimit,
    format: OutputFormat,
) -> anyhow::Result<CommandOutcome> {
    let reports = match limit {
        Some(limit) => wait(registry, &[], limit).await?,
        None => read_reports(registry, &[]).await?,
    };
    match format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&reports, format)?,
        OutputFormat::Table => report::overview(&reports)?,
    }
    Ok(outcome(&reports))
}

fn outcome(reports: &[DrainReport]) -> CommandOutcome {
    if are_drained(reports) {
        CommandOutcome::Success
    } else {
        CommandOutcome::Unfinished
    }
}

fn are_drained(reports: &[DrainReport]) -> bool {
    reports.iter().all(|report| report.remaining.is_drained())
}

/// Returns the drains in force among `scopes`, or all of them if `scopes` is empty.
async fn read_reports(
    registry: &Registry,
    scopes: &[&DrainScope],
) -> anyhow::Result<Vec<DrainReport>> {
    let drains = drain::list(&**registry.tree()).await?.into_iter();
    let wanted = |scope: &DrainScope| scopes.is_empty() || scopes.contains(&scope);
    let drains: Vec<_> = drains.filter(|(scope, _)| wanted(scope)).collect();
    let snapshot = DrainSnapshot::read(registry).await?;
    let reports = drains.into_iter().map(|(scope, stat)| DrainReport {
        remaining: snapshot.remaining(&scope),
        since: stat.ctime,
        scope,
    });
    Ok(reports.collect())
}

/// Returns the drain when all launchers have noticed it, or after [`NOTICE`].
async fn until_noticed(
    registry: &Registry,
    scope: &DrainScope,
) -> anyhow::Result<Vec<DrainReport>> {
    let mut changes = RecordChanges::watch(&**registry.tree()).await?;
    let deadline = Instant::now() + NOTICE;
    loop {
        let reports = read_reports(registry, &[scope]).await?;
        let accepting = reports
            .iter()
            .any(|report| !report.remaining.accepting.is_empty());
        if !accepting || Instant::now() >= deadline {
            return Ok(reports);
        }
        changes.next(deadline - Instant::now()).await?;
    }
}

async fn wait(
    registry: &Registry,
    scopes: &[&DrainScope],
    limit: Option<Duration>,
) -> anyhow::Result<Vec<DrainReport>> {
    let mut changes = RecordChanges::watch(&**registry.tree()).await?;
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut progress = ProgressLine::default();
    let mut drained_before = false;
    loop {
        let reports = read_reports(registry, scopes).await?;
        let drained = are_drained(&reports);
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if drained && drained_before || late {
            return Ok(reports);
        }
        let lines: Vec<String> = reports.iter().map(DrainReport::summary).collect();
        progress.show(&lines.join("; "))?;
        drained_before = drained;
        let most = match deadline {
            Some(deadline) => SAFETY.min(deadline - Instant::now()),
            None => SAFETY,
        };
        sleep(PAUSE.min(most)).await;
        if !drained {
            changes.next(most).await?;
        }
    }
}

/// Watches the records for changes.
struct RecordChanges(nodeyard_store::Watcher);

impl RecordChanges {
    async fn watch(tree: &dyn Tree) -> anyhow::Result<Self> {
        let root = TreePath::new(nodeyard_model::layout::NODEPOOL)?;
        Ok(Self(tree.watch(&root).await?))
    }

    /// Waits for a change, at most for `at_most`. A burst of changes counts as one.
    async fn next(&mut self, at_most: Duration) -> anyhow::Result<()> {
        if let Ok(change) = timeout(at_most, self.0.next()).await {
            ensure!(change.is_some(), "the connection to the store was closed");
        }
        while let Ok(Some(_)) = timeout(Duration::ZERO, self.0.next()).await {}
        Ok(())
    }
}
