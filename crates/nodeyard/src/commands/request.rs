//! `nodeyard request`: gets machines, says how to reach them, runs a command on them, gives them back.
//!
//! From the moment the lease exists, it is given back however this ends: by the command's own end, an error, Ctrl-C
//! or SIGTERM. If even that does not happen (`kill -9`, a lost connection), nobody renews the lease, and it ends by
//! itself.

mod interruption;
pub(super) mod keep;
mod reach;
mod run;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anstream::eprintln;
use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use nodeyard_model::RequestId;
use nodeyard_store::registry::Registry;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use crate::api_client::{ApiArgs, ApiClient, Lease};
use crate::commands::records::{self, RecordCommand, RecordKind};
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Format};
use crate::span;
use crate::store_access::{self, TargetArgs};
use interruption::Interruption;
pub(crate) use reach::Way;

/// How long the API may take to hear that the machines are given back.
const FAREWELL: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct RequestArgs {
    #[command(subcommand)]
    command: Option<RequestCommand>,
    /// What the machines must be, one for each
    #[arg(required = true, value_name = "LABEL")]
    labels: Vec<String>,
    /// How long the machines are kept without a sign of life from this command, such as 30m or 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span::parse)]
    lease: Duration,
    /// Scope that owns the request; its later requests are served where its first machines are
    #[arg(long)]
    scope: Option<String>,
    /// Fail where the provider of the scope's first machines cannot serve this
    #[arg(long, requires = "scope")]
    strict: bool,
    /// Tenant to ask for, if the token belongs to none
    #[arg(long)]
    tenant: Option<String>,
    /// The only provider that will do
    #[arg(long)]
    provider: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    priority: Priority,
    /// Asking again with the same key gives the same lease
    #[arg(long)]
    key: Option<String>,
    /// Wait for the machines; this is what happens anyway
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Print the lease and leave: the request waits on its own, for as long as --lease says
    #[arg(long, conflicts_with_all = ["run", "remote", "detach"])]
    no_wait: bool,
    /// Leave the machines when they are ready: the lease ends after --lease, or by `nodeyard lease rm`
    #[arg(long, conflicts_with_all = ["run", "remote"])]
    detach: bool,
    /// Run this in a shell on every machine, and give them back then
    #[arg(long, value_name = "SCRIPT", conflicts_with = "remote")]
    run: Option<String>,
    /// Private key to log in with, if ssh does not find it by itself
    #[arg(short, long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
    /// Run this command on every machine, and give them back then
    #[arg(last = true, value_name = "COMMAND")]
    remote: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum RequestCommand {
    #[command(flatten)]
    Records(RecordCommand),
    /// Delete requests: a lease ends with its request, and Zuul asks again
    Rm {
        #[arg(required = true)]
        requests: Vec<RequestId>,
    },
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl RequestArgs {
    /// What to run on the machines, as text for their shell.
    fn script(&self) -> anyhow::Result<Option<String>> {
        if let Some(script) = &self.run {
            return Ok(Some(script.clone()));
        }
        if self.remote.is_empty() {
            return Ok(None);
        }
        let words = self.remote.iter().map(String::as_str);
        let script = shlex::try_join(words).context("the command cannot be passed to a shell")?;
        Ok(Some(script))
    }
}

pub(crate) async fn run(args: RequestArgs, context: &Context) -> anyhow::Result<Outcome> {
    if let Some(command) = args.command {
        let target = TargetArgs::in_directory(args.api.state_dir());
        match command {
            RequestCommand::Records(command) => {
                records::on_target(RecordKind::Request, &target, command, context).await?;
            }
            RequestCommand::Rm { requests } => {
                let remove = async |registry: &Registry| remove(registry, &requests).await;
                store_access::with_registry(&target, context, remove).await?;
            }
        }
        return Ok(Outcome::Success);
    }
    let script = args.script()?;
    let client = ApiClient::new(&args.api, context)?;
    let mut interruption = Interruption::listen()?;
    let lease = ask(&client, &args).await?;
    if args.no_wait {
        match context.format {
            Format::Json | Format::Yaml => output::document(&lease, context.format)?,
            Format::Table => writeln!(io::stdout(), "{}", lease.id)?,
        }
        return Ok(Outcome::Success);
    }
    let attended = tokio::select! {
        result = attend(&client, &lease, &args, script, context) => result,
        code = interruption.arrives() => Ok(Outcome::Code(code)),
    };
    match attended {
        Ok(Outcome::Success) if args.detach => Ok(Outcome::Success),
        attended => {
            give_back(&client, &lease).await;
            attended
        }
    }
}

async fn remove(registry: &Registry, ids: &[RequestId]) -> anyhow::Result<()> {
    for id in ids {
        let was_there = registry.requests().delete(*id).await?;
        ensure!(
            was_there,
            "there is no request {id}; `nodeyard request ls` lists them"
        );
    }
    Ok(())
}

async fn ask(client: &ApiClient, args: &RequestArgs) -> anyhow::Result<Lease> {
    // With a key of our own, a second attempt after a lost answer asks for nothing more.
    let own = Uuid::new_v4().to_string();
    let key = args.key.as_deref().unwrap_or(&own);
    let affinity = if args.strict { "strict" } else { "prefer" };
    let mut body = json!({
        "labels": args.labels,
        "duration": args.lease.as_secs(),
        "priority": args.priority.as_str(),
        "affinity": affinity,
    });
    for (name, value) in [
        ("scope", &args.scope),
        ("tenant", &args.tenant),
        ("provider", &args.provider),
    ] {
        if let (Some(value), Some(body)) = (value, body.as_object_mut()) {
            body.insert(name.to_owned(), json!(value));
        }
    }
    client.post("/requests", &body, Some(key)).await
}

/// Waits for the machines and does what they are wanted for.
async fn attend(
    client: &ApiClient,
    lease: &Lease,
    args: &RequestArgs,
    script: Option<String>,
    context: &Context,
) -> anyhow::Result<Outcome> {
    let lease = keep::until_ready(client, lease).await?;
    if !lease.is_active() {
        bail!("lease {} is over: {}", lease.id, lease.why_over());
    }
    let files = TempDir::new()?;
    let directory = (!args.detach).then(|| files.path());
    let mut ways = Vec::new();
    for node in lease.nodes.iter().filter(|node| node.is_leased()) {
        ways.push(Way::to(node, directory, args.identity.as_deref())?);
    }
    show(&lease, &ways, script.is_some(), context)?;
    if args.detach {
        return Ok(Outcome::Success);
    }
    let work = async {
        match script {
            Some(script) => run::everywhere(&ways, &script).await,
            None => {
                eprintln!("press Ctrl-C to give the machines back");
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        result = work => result,
        error = keep::renew(client, &lease) => Err(error),
    }
}

/// How to reach the machines. The output of a command that runs on them is not to be mixed with that.
fn show(lease: &Lease, ways: &[Way], runs: bool, context: &Context) -> anyhow::Result<()> {
    if runs {
        for way in ways {
            eprintln!("{}: {}", way.name, way.login());
        }
        return Ok(());
    }
    match context.format {
        Format::Json | Format::Yaml => output::document(lease, context.format),
        Format::Table => {
            let mut out = io::stdout().lock();
            writeln!(out, "lease {}, from {}", lease.id, lease.placement)?;
            for way in ways {
                writeln!(out, "{}: {}", way.name, way.login())?;
            }
            Ok(())
        }
    }
}

async fn give_back(client: &ApiClient, lease: &Lease) {
    let path = format!("/leases/{}", lease.id);
    let ended = tokio::time::timeout(FAREWELL, client.delete::<Lease>(&path)).await;
    let error = match ended {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "the API does not answer".to_owned(),
    };
    eprintln!(
        "lease {} could not be given back ({error}); it ends by itself",
        lease.id
    );
}
