//! Commands that access the pod of a node: `nodeyard exec`, `nodeyard logs` and `nodeyard git-exec`.

mod git_exec;

use anyhow::{Context as _, bail};
use clap::Args;
use nodeyard_driver_kubernetes::exec::{Container, Credentials};
use nodeyard_driver_kubernetes::{Connect as _, Kubeconfig};
use nodeyard_model::{ConnectionPort, Node, NodeId};
use tokio::io::{stderr, stdin, stdout};

use crate::context::CommandContext;
use crate::exit::CommandOutcome;
use crate::store_access::{self, TargetArgs};

pub(crate) use git_exec::{GitExecArgs, run as git_exec};

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    node: NodeId,
    /// Container of the pod; the main one when absent
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// The command and its arguments; it is not run in a shell
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    node: NodeId,
    /// Follow the output
    #[arg(short, long)]
    follow: bool,
    /// Start this many lines before the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Container of the pod; the main one when absent
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// Runs a command in the pod and exits with its exit code.
pub(crate) async fn exec(
    args: ExecArgs,
    context: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let container = find(args.node, args.container, &args.target, context).await?;
    let code = container
        .run(&args.command, Some(stdin()), stdout(), stderr())
        .await?;
    Ok(CommandOutcome::Code(code))
}

pub(crate) async fn logs(args: LogsArgs, context: &CommandContext) -> anyhow::Result<()> {
    let container = find(args.node, args.container, &args.target, context).await?;
    let tail = args.tail.map(i64::from);
    Ok(container.logs(args.follow, tail, stdout()).await?)
}

/// Returns the container of a node, with the node's own credentials if its record still has them.
async fn find(
    id: NodeId,
    container: Option<String>,
    target: &TargetArgs,
    context: &CommandContext,
) -> anyhow::Result<Container> {
    let node = store_access::with_registry(target, context, async |registry| {
        Ok(registry.nodes().get(id).await?)
    });
    let node = node
        .await?
        .with_context(|| format!("no node {id}; `nodeyard node ls` lists them"))?
        .value;
    let kind = node.connection_type.as_deref().unwrap_or("ssh");
    if kind != "kubectl" {
        bail!(
            "node {id} is not a pod: its connection is {kind}{}",
            address(&node)
        );
    }
    if let ConnectionPort::Cluster(credentials) = &node.connection_port {
        let credentials: Credentials = credentials
            .decode()
            .context("failed to read the cluster credentials in the node's record")?;
        return Ok(Container {
            client: credentials.client()?,
            pod: credentials.pod.context("no pod in the node's record")?,
            namespace: credentials.namespace,
            container,
        });
    }
    // Zuul removes the credentials from the records of nodes that it uses.
    let connection = Kubeconfig {
        file: None,
        context: node.cloud.as_deref().map(ToOwned::to_owned),
    };
    let namespace = node.external_id.as_string();
    Ok(Container {
        client: connection.connect().await?.client,
        namespace: namespace.context("no namespace in the node's record")?,
        pod: node
            .interface_ip
            .context("no pod in the node's record")?
            .into(),
        container,
    })
}

fn address(node: &Node) -> String {
    match (&node.interface_ip, &node.connection_port) {
        (Some(address), ConnectionPort::Number(port)) => format!(" at {address} port {port}"),
        _ => String::new(),
    }
}
