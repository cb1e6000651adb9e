//! `nodeyard request`: requests machines, prints how to log in, runs a command on them and releases them.
//!
//! Once the lease exists, it is released when this command ends: normally, with an error, by Ctrl-C or by SIGTERM. If
//! the command is killed or loses the connection, the lease is no longer renewed and expires.

mod interruption;
pub(super) mod keep_alive;
mod login;
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

use crate::api_client::{ApiArgs, ApiClient, LeaseResponse};
use crate::commands::records::{self, RecordCommand, RecordKind};
use crate::context::CommandContext;
use crate::duration;
use crate::exit::CommandOutcome;
use crate::output::{self, OutputFormat};
use crate::store_access::{self, TargetArgs};
use interruption::Interruption;
pub(crate) use login::LoginCommand;

/// The timeout for releasing the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct RequestArgs {
    #[command(subcommand)]
    command: Option<RequestCommand>,
    /// The label of each machine
    #[arg(required = true, value_name = "LABEL")]
    labels: Vec<String>,
    /// How long the machines are kept after this command stops renewing the lease, such as 30m or 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    lease: Duration,
    /// Scope that owns the lease; later requests in it prefer the provider of its first machines
    #[arg(long)]
    scope: Option<String>,
    /// Fail if the provider of the scope's first machines cannot serve this
    #[arg(long, requires = "scope")]
    strict: bool,
    /// Tenant of the request, if the token belongs to none
    #[arg(long)]
    tenant: Option<String>,
    /// The only acceptable provider
    #[arg(long)]
    provider: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    priority: PriorityArg,
    /// Idempotency key: a repeated request with the same key returns the same lease
    #[arg(long)]
    key: Option<String>,
    /// Wait for the machines; this is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Print the lease and exit; the request waits for as long as --lease says
    #[arg(long, conflicts_with_all = ["run", "remote", "detach"])]
    no_wait: bool,
    /// Exit when the machines are ready; the lease expires after --lease, or ends by `nodeyard lease rm`
    #[arg(long, conflicts_with_all = ["run", "remote"])]
    detach: bool,
    /// Run this script in a shell on every machine, and release them afterwards
    #[arg(long, value_name = "SCRIPT", conflicts_with = "remote")]
    run: Option<String>,
    /// Private key to log in with, if ssh does not find it
    #[arg(short, long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
    /// Run this command on every machine, and release them afterwards
    #[arg(last = true, value_name = "COMMAND")]
    remote: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum RequestCommand {
    #[command(flatten)]
    Records(RecordCommand),
    /// Delete requests; a lease ends with its request, and Zuul requests again
    Rm {
        #[arg(required = true)]
        requests: Vec<RequestId>,
    },
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PriorityArg {
    High,
    #[default]
    Normal,
    Low,
}

impl PriorityArg {
    fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl RequestArgs {
    /// Returns the script to run on the machines.
    fn script(&self) -> anyhow::Result<Option<String>> {
        if let Some(script) = &self.run {
            return Ok(Some(script.clone()));
        }
        if self.remote.is_empty() {
            return Ok(None);
        }
        let words = self.remote.iter().map(String::as_str);
        let script = shlex::try_join(words).context("failed to quote the command for a shell")?;
        Ok(Some(script))
    }
}

pub(crate) async fn run(
    args: RequestArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
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
        return Ok(CommandOutcome::Success);
    }
    let script = args.script()?;
    let client = ApiClient::new(&args.api, context)?;
    let mut interruption = Interruption::listen()?;
    let lease = create_request(&client, &args).await?;
    if args.no_wait {
        match context.format {
            OutputFormat::Json | OutputFormat::Yaml => output::document(&lease, context.format)?,
            OutputFormat::Table => writeln!(io::stdout(), "{}", lease.id)?,
        }
        return Ok(CommandOutcome::Success);
    }
    let result = tokio::select! {
        result = use_machines(&client, &lease, &args, script, context) => result,
        code = interruption.wait() => Ok(CommandOutcome::Code(code)),
    };
    match result {
        Ok(CommandOutcome::Success) if args.detach => Ok(CommandOutcome::Success),
        result => {
            release(&client, &lease).await;
            result
        }
    }
}

async fn remove(registry: &Registry, ids: &[RequestId]) -> anyhow::Result<()> {
    for id in ids {
        let was_there = registry.requests().delete(*id).await?;
        ensure!(
            was_there,
            "no request {id}; `nodeyard request ls` lists them"
        );
    }
    Ok(())
}

async fn create_request(client: &ApiClient, args: &RequestArgs) -> anyhow::Result<LeaseResponse> {
    // With a generated key, a retry after a lost response does not create a second request.
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

/// Waits for the machines and uses them.
async fn use_machines(
    client: &ApiClient,
    lease: &LeaseResponse,
    args: &RequestArgs,
    script: Option<String>,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let lease = keep_alive::until_ready(client, lease).await?;
    if !lease.is_active() {
        bail!("lease {} has ended: {}", lease.id, lease.end_reason());
    }
    let files = TempDir::new()?;
    let directory = (!args.detach).then(|| files.path());
    let mut logins = Vec::new();
    for node in lease.nodes.iter().filter(|node| node.is_leased()) {
        logins.push(LoginCommand::to(node, directory, args.identity.as_deref())?);
    }
    show(&lease, &logins, script.is_some(), context)?;
    if args.detach {
        return Ok(CommandOutcome::Success);
    }
    let work = async {
        match script {
            Some(script) => run::on_all(&logins, &script).await,
            None => {
                eprintln!("press Ctrl-C to release the machines");
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        result = work => result,
        error = keep_alive::renew(client, &lease) => Err(error),
    }
}

/// Prints how to log in; to standard error if a script writes to standard output.
fn show(
    lease: &LeaseResponse,
    logins: &[LoginCommand],
    runs: bool,
    context: &CommandContext,
) -> anyhow::Result<()> {
    if runs {
        for login in logins {
            eprintln!("{}: {}", login.name, login.command_line());
        }
        return Ok(());
    }
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(lease, context.format),
        OutputFormat::Table => {
            let mut out = io::stdout().lock();
            writeln!(out, "lease {}, from {}", lease.id, lease.placement)?;
            for login in logins {
                writeln!(out, "{}: {}", login.name, login.command_line())?;
            }
            Ok(())
        }
    }
}

async fn release(client: &ApiClient, lease: &LeaseResponse) {
    let path = format!("/leases/{}", lease.id);
    let ended = tokio::time::timeout(RELEASE_TIMEOUT, client.delete::<LeaseResponse>(&path)).await;
    let error = match ended {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "the API does not respond".to_owned(),
    };
    eprintln!(
        "failed to release lease {} ({error}); it will expire",
        lease.id
    );
}
