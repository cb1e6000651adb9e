//! `nodeyard scope`: open, list, show, renew and end scopes.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::lease::{left, pages};
use super::records::{self, WatchArgs};
use crate::api_client::{ApiArgs, ApiClient, ScopeResponse};
use crate::context::CommandContext;
use crate::duration;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct ScopeArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Tenant of the scope, if the token belongs to none
    #[arg(long, global = true)]
    tenant: Option<String>,
    #[command(subcommand)]
    command: ScopeCommand,
}

#[derive(Debug, Subcommand)]
enum ScopeCommand {
    /// List scopes, and the buildsets of Zuul that have requests or machines
    Ls(WatchArgs),
    /// Show a scope and what it owns
    Show { scope: String },
    /// Print the machines of a scope as an Ansible inventory, as `ansible-inventory --list` does
    Inventory { scope: String },
    /// Open a scope, which expires
    Open {
        scope: String,
        /// How long it lives unless it is renewed, such as 4h
        #[arg(long, value_name = "TIME", default_value = "8h", value_parser = duration::parse)]
        lease: Duration,
    },
    /// Extend a scope from now on
    Renew {
        scope: String,
        /// The new duration, such as 4h; that of opening it if absent
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        lease: Option<Duration>,
    },
    /// End a scope and everything it owns
    Rm { scope: String },
}

pub(crate) async fn run(args: ScopeArgs, context: &CommandContext) -> anyhow::Result<()> {
    let client = ApiClient::new(&args.api, context)?;
    let tenant = args.tenant.as_deref();
    match args.command {
        ScopeCommand::Ls(watch) => {
            records::repeat(&watch, async || list(&client, &watch, context).await).await
        }
        ScopeCommand::Show { scope } => {
            show(&client.get(&path(&scope, "", tenant)).await?, context)
        }
        ScopeCommand::Inventory { scope } => {
            let inventory: Value = client.get(&path(&scope, "/inventory", tenant)).await?;
            output::document(&inventory, context.format.or_json())
        }
        ScopeCommand::Open { scope, lease } => {
            let mut body = json!({ "name": scope, "duration": lease.as_secs() });
            if let (Some(tenant), Some(body)) = (tenant, body.as_object_mut()) {
                body.insert("tenant".to_owned(), json!(tenant));
            }
            show(&client.post("/scopes", &body, None).await?, context)
        }
        ScopeCommand::Renew { scope, lease } => {
            let body = match lease {
                Some(lease) => json!({ "duration": lease.as_secs() }),
                None => json!({}),
            };
            let path = path(&scope, "/renew", tenant);
            show(&client.post(&path, &body, None).await?, context)
        }
        ScopeCommand::Rm { scope } => {
            show(&client.delete(&path(&scope, "", tenant)).await?, context)
        }
    }
}

fn path(scope: &str, below: &str, tenant: Option<&str>) -> String {
    let query = tenant.map(|tenant| format!("?tenant={}", escape(tenant)));
    format!(
        "/scopes/{}{below}{}",
        escape(scope),
        query.unwrap_or_default()
    )
}

/// Escapes a text as part of a URL.
fn escape(text: &str) -> String {
    let escaped = text.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    escaped.collect()
}

async fn list(
    client: &ApiClient,
    watch: &WatchArgs,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let scopes: Vec<ScopeResponse> = pages(client, "/scopes").await?;
    if context.format.is_document() {
        return records::document(&scopes, watch, context);
    }
    watch.clear_screen()?;
    if scopes.is_empty() {
        return output::none("scope");
    }
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = scopes.into_iter().map(|scope| {
        [
            scope.name,
            known(scope.tenant),
            scope.owner.unwrap_or_else(|| "zuul".to_owned()),
            scope.nodes.len().to_string(),
            scope
                .expires
                .as_deref()
                .map_or_else(|| "-".to_owned(), left),
            known(scope.provider),
        ]
    });
    let headings = ["SCOPE", "TENANT", "OWNER", "NODES", "EXPIRES", "PROVIDER"];
    output::table(headings, rows)
}

fn show(scope: &ScopeResponse, context: &CommandContext) -> anyhow::Result<()> {
    if context.format.is_document() {
        return output::document(scope, context.format);
    }
    let mut out = io::stdout().lock();
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let state = match (&scope.owner, scope.closing) {
        (None, _) => "a buildset of Zuul",
        (Some(_), true) => "closing",
        (Some(_), false) => "open",
    };
    for (name, value) in [
        ("scope", scope.name.clone()),
        ("state", state.to_owned()),
        ("tenant", known(&scope.tenant)),
        ("owner", known(&scope.owner)),
        ("created", known(&scope.created)),
        ("expires", known(&scope.expires)),
        ("provider", known(&scope.provider)),
        ("leases", scope.leases.join(" ")),
        ("requests", scope.requests.join(" ")),
        ("nodes", scope.nodes.join(" ")),
    ] {
        writeln!(out, "{name:<9} {value}")?;
    }
    Ok(())
}
