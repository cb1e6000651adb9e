//! Commands that reach into a node: `nodeyard exec`, `nodeyard logs` and `nodeyard git-exec`.

mod git_exec;

use anyhow::{Context as _, bail};
use clap::Args;
use nodeyard_driver_kubernetes::exec::{Container, Credentials};
use nodeyard_driver_kubernetes::{Connect as _, Kubeconfig};
use nodeyard_model::{ConnectionPort, Node, NodeId};
use tokio::io::{stderr, stdin, stdout};

use crate::context::Context;
use crate::exit::Outcome;
use crate::store_access::{self, TargetArgs};

pub(crate) use git_exec::{GitExecArgs, run as git_exec};

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    node: NodeId,
    /// Which container of the pod; without it the main one
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// The command and its arguments; there is no shell around it
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    node: NodeId,
    /// Go on with what is printed from now on
    #[arg(short, long)]
    follow: bool,
    /// Begin this many lines before the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Which container of the pod; without it the main one
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// Ends with the exit code of the command.
pub(crate) async fn exec(args: ExecArgs, context: &Context) -> anyhow::Result<Outcome> {
    let container = find(args.node, args.container, &args.target, context).await?;
    let code = container
        .run(&args.command, Some(stdin()), stdout(), stderr())
        .await?;
    Ok(Outcome::Code(code))
}

pub(crate) async fn logs(args: LogsArgs, context: &Context) -> anyhow::Result<()> {
    let container = find(args.node, args.container, &args.target, context).await?;
    let tail = args.tail.map(i64::from);
    Ok(container.logs(args.follow, tail, stdout()).await?)
}

/// The pod of a node, with the node's own credentials where its record still has them.
async fn find(
    id: NodeId,
    container: Option<String>,
    target: &TargetArgs,
    context: &Context,
) -> anyhow::Result<Container> {
    let node = store_access::with_registry(target, context, async |registry| {
        Ok(registry.nodes().get(id).await?)
    });
    let node = node
        .await?
        .with_context(|| format!("there is no node {id}; `nodeyard node ls` lists them"))?
        .value;
    let kind = node.connection_type.as_deref().unwrap_or("ssh");
    if kind != "kubectl" {
        bail!(
            "node {id} is reached by {kind}{}, and only pods of a cluster can be reached by this command",
            address(&node)
        );
    }
    if let ConnectionPort::Cluster(credentials) = &node.connection_port {
        let credentials: Credentials = credentials
            .decode()
            .context("the node's record does not say how to reach its cluster")?;
        return Ok(Container {
            client: credentials.client()?,
            pod: credentials.pod.context("the node has no pod")?,
            namespace: credentials.namespace,
            container,
        });
    }
    // A node that Zuul has used has lost them.
    let connection = Kubeconfig {
        file: None,
        context: node.cloud.as_deref().map(ToOwned::to_owned),
    };
    let namespace = node.external_id.as_string();
    Ok(Container {
        client: connection.connect().await?.client,
        namespace: namespace.context("the node's record does not name its namespace")?,
        pod: node
            .interface_ip
            .context("the node's record does not name its pod")?
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
