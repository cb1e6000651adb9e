//! `nodeyard drain` and `undrain`: what is to accept nothing new, and how far that is.
//!
//! Everything is done by way of the store, so it works from any host and whether or not a launcher runs.

mod report;

use std::time::Duration;

use anstream::{eprintln, println};
use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use nodeyard_launcher::Scope;
use nodeyard_launcher::drain::{self, Picture};
use nodeyard_model::{Label, ProviderName};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Tree, TreePath};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Format};
use crate::progress_line::ProgressLine;
use crate::store_access;
use report::Report;

/// Between two looks, however much changes. What was found twice in a row is believed: a launcher may have
/// accepted something in the moment before it noticed the drain.
const PAUSE: Duration = Duration::from_secs(1);
/// A look without any change, should one have been missed.
const SAFETY: Duration = Duration::from_secs(30);
/// How long launchers may take to notice before they are reported.
const NOTICE: Duration = Duration::from_secs(3);

pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  in force, and nothing is under way any more
  1  it could not be done; the reason is on standard error
  2  the command line is wrong
  3  in force, but something is still under way";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_HELP)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    target: store_access::TargetArgs,
    /// Wait until nothing is under way any more, or for so many seconds
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "inf")]
    wait: Option<f64>,
    #[command(subcommand)]
    command: DrainCommand,
}

#[derive(Debug, Subcommand)]
enum DrainCommand {
    #[command(flatten)]
    Begin(ScopeArgs),
    /// List the drains in force and what is left of each
    Ls,
}

#[derive(Debug, Args)]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    target: store_access::TargetArgs,
    #[command(subcommand)]
    scope: ScopeArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum ScopeArgs {
    /// All pools of the launchers on a host
    Launcher {
        /// As components are registered: without the domain
        host: String,
    },
    /// All pools of a provider, whoever runs them
    Provider { name: ProviderName },
    /// One pool of a provider
    Pool {
        /// `<provider>/<pool>`
        #[arg(value_name = "PROVIDER/POOL", value_parser = pool)]
        pool: Scope,
    },
    /// Requests for a label wait
    Label { label: Label },
}

fn pool(text: &str) -> Result<Scope, String> {
    let (provider, pool) = text
        .split_once('/')
        .filter(|(_, pool)| !pool.is_empty())
        .ok_or("expected <provider>/<pool>, as in `cloud/main`")?;
    let provider = ProviderName::new(provider).map_err(|error| error.to_string())?;
    Ok(Scope::Pool(pool.into(), provider))
}

impl From<ScopeArgs> for Scope {
    fn from(args: ScopeArgs) -> Self {
        match args {
            ScopeArgs::Launcher { host } => Scope::Launcher(host.into()),
            ScopeArgs::Provider { name } => Scope::Provider(name),
            ScopeArgs::Pool { pool } => pool,
            ScopeArgs::Label { label } => Scope::Label(label),
        }
    }
}

pub(crate) async fn run(args: DrainArgs, context: &Context) -> anyhow::Result<Outcome> {
    let patience = match args.wait {
        None => None,
        Some(seconds) => match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => Some(Some(limit)),
            Err(_) if seconds == f64::INFINITY => Some(None),
            Err(_) => bail!("--wait={seconds} is not a number of seconds"),
        },
    };
    store_access::with_registry(&args.target, context, async |registry| match args.command {
        DrainCommand::Begin(scope) => begin(registry, scope.into(), patience, context.format).await,
        DrainCommand::Ls => list(registry, patience, context.format).await,
    })
    .await
}

pub(crate) async fn undo(args: UndrainArgs, context: &Context) -> anyhow::Result<()> {
    let scope = Scope::from(args.scope);
    let ended = store_access::with_registry(&args.target, context, async |registry| {
        Ok(drain::end(&**registry.tree(), &scope).await?)
    });
    ensure!(
        ended.await?,
        "{scope} is not drained; see `nodeyard drain ls`"
    );
    match context.format {
        Format::Json | Format::Yaml => {
            let ended = json!({"scope": scope.to_string(), "drained": false});
            output::document(&ended, context.format)?;
        }
        Format::Table => println!("{scope} takes requests again"),
    }
    Ok(())
}

/// How long to wait for the end: not at all, until then, or for ever.
type Patience = Option<Option<Duration>>;

async fn begin(
    registry: &Registry,
    scope: Scope,
    patience: Patience,
    format: Format,
) -> anyhow::Result<Outcome> {
    drain::begin(&**registry.tree(), &scope).await?;
    let mut reports = match patience {
        Some(limit) => wait(registry, &[&scope], limit).await?,
        None => noticed(registry, &scope).await?,
    };
    let Some(report) = reports.pop() else {
        bail!("the drain of {scope} was taken back meanwhile");
    };
    if report.remaining.pools.is_empty() {
        eprintln!("no running launcher has anything of {scope}; it holds for those that will");
    }
    match format {
        Format::Json | Format::Yaml => output::document(&report, format)?,
        Format::Table => report.print()?,
    }
    Ok(outcome(&[report]))
}

async fn list(registry: &Registry, patience: Patience, format: Format) -> anyhow::Result<Outcome> {
    let reports = match patience {
        Some(limit) => wait(registry, &[], limit).await?,
        None => look(registry, &[]).await?,
    };
    match format {
        Format::Json | Format::Yaml => output::document(&reports, format)?,
        Format::Table => report::overview(&reports)?,
    }
    Ok(outcome(&reports))
}

fn outcome(reports: &[Report]) -> Outcome {
    if are_drained(reports) {
        Outcome::Success
    } else {
        Outcome::Unfinished
    }
}

fn are_drained(reports: &[Report]) -> bool {
    reports.iter().all(|report| report.remaining.is_drained())
}

/// The drains in force among `scopes`, or all of them if there are none.
async fn look(registry: &Registry, scopes: &[&Scope]) -> anyhow::Result<Vec<Report>> {
    let drains = drain::list(&**registry.tree()).await?.into_iter();
    let wanted = |scope: &Scope| scopes.is_empty() || scopes.contains(&scope);
    let drains: Vec<_> = drains.filter(|(scope, _)| wanted(scope)).collect();
    let picture = Picture::read(registry).await?;
    let reports = drains.into_iter().map(|(scope, stat)| Report {
        remaining: picture.remaining(&scope),
        since: stat.ctime,
        scope,
    });
    Ok(reports.collect())
}

/// Looks when launchers had time to notice.
async fn noticed(registry: &Registry, scope: &Scope) -> anyhow::Result<Vec<Report>> {
    let mut changes = Changes::watch(&**registry.tree()).await?;
    let deadline = Instant::now() + NOTICE;
    loop {
        let reports = look(registry, &[scope]).await?;
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
    scopes: &[&Scope],
    limit: Option<Duration>,
) -> anyhow::Result<Vec<Report>> {
    let mut changes = Changes::watch(&**registry.tree()).await?;
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut progress = ProgressLine::default();
    let mut drained_before = false;
    loop {
        let reports = look(registry, scopes).await?;
        let drained = are_drained(&reports);
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if drained && drained_before || late {
            return Ok(reports);
        }
        let lines: Vec<String> = reports.iter().map(Report::summary).collect();
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

/// That something has changed in the records.
struct Changes(nodeyard_store::Watcher);

impl Changes {
    async fn watch(tree: &dyn Tree) -> anyhow::Result<Self> {
        let root = TreePath::new(nodeyard_model::layout::NODEPOOL)?;
        Ok(Self(tree.watch(&root).await?))
    }

    /// Returns with the next change, or when the time is over; a burst of changes is one.
    async fn next(&mut self, at_most: Duration) -> anyhow::Result<()> {
        if let Ok(change) = timeout(at_most, self.0.next()).await {
            ensure!(change.is_some(), "the store went away");
        }
        while let Ok(Some(_)) = timeout(Duration::ZERO, self.0.next()).await {}
        Ok(())
    }
}
