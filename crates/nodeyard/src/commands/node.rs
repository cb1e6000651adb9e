//! `nodeyard node`: list, show, wait for and delete nodes.

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use nodeyard_model::{NodeId, NodeState, layout, now};
use nodeyard_operations::{Error, nodes};
use nodeyard_store::TreePath;
use nodeyard_store::registry::Registry;

use crate::commands::records::{self, RecordCommand, RecordKind};
use crate::context::CommandContext;
use crate::progress_line::ProgressLine;
use crate::store_access::{self, TargetArgs};

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    #[command(flatten)]
    Records(RecordCommand),
    /// Wait until a node is ready, and show its state
    Wait { node: NodeId },
    /// Let the launcher delete a node
    Rm {
        #[arg(required = true)]
        nodes: Vec<NodeId>,
    },
}

pub(crate) async fn run(args: NodeArgs, context: &CommandContext) -> anyhow::Result<()> {
    match args.command {
        NodeCommand::Records(command) => {
            records::on_target(RecordKind::Node, &args.target, command, context).await
        }
        NodeCommand::Wait { node } => {
            let wait = async |registry: &Registry| wait(registry, node).await;
            store_access::with_registry(&args.target, context, wait).await
        }
        NodeCommand::Rm { nodes } => {
            let remove = async |registry: &Registry| remove(registry, nodes).await;
            store_access::with_registry(&args.target, context, remove).await
        }
    }
}

fn missing(id: NodeId) -> String {
    format!("there is no node {id}; `nodeyard node ls` lists them")
}

async fn remove(registry: &Registry, ids: Vec<NodeId>) -> anyhow::Result<()> {
    for id in ids {
        let deleted = nodes::delete(registry, id, now()).await;
        deleted.map_err(|error| match error {
            Error::Gone => anyhow!(missing(id)),
            Error::Busy => anyhow!(
                "node {id} is locked by its user; end its lease with `nodeyard lease rm`, or try again when it is released"
            ),
            error => error.into(),
        })?;
    }
    Ok(())
}

/// Returns when the node is ready or in use.
async fn wait(registry: &Registry, id: NodeId) -> anyhow::Result<()> {
    let path = TreePath::new(layout::node(id))?;
    let mut changes = registry.tree().watch(&path).await?;
    let mut line = ProgressLine::default();
    loop {
        let node = registry.nodes().get(id).await?;
        let state = node.with_context(|| missing(id))?.value.state;
        let text = format!("node {id} is {state}");
        match state {
            NodeState::Init | NodeState::Building | NodeState::Testing => line.show(&text)?,
            NodeState::Ready | NodeState::InUse | NodeState::Hold => {
                line.finish(&text)?;
                return Ok(());
            }
            _ => bail!(text),
        }
        changes
            .next()
            .await
            .context("the connection to the store was closed")?;
    }
}
