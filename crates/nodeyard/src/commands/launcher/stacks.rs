//! What a launcher is doing, in its log, whenever SIGUSR2 asks. Nodepool shows the stacks of its threads then; here
//! work is not bound to threads, so it is named by what it is about.

use nodeyard_launcher::{Handle, Status};
use tracing::info;

use crate::commands::signals;

/// Never returns while the launcher lives.
pub(super) async fn answer(launcher: Handle) -> anyhow::Result<()> {
    let mut questions = signals::questions()?;
    while questions.recv().await.is_some() {
        let Some(status) = launcher.status().await else {
            break;
        };
        info!("{}", text(&status));
    }
    Ok(())
}

fn text(status: &Status) -> String {
    let mut lines = vec![format!(
        "launcher with {} nodes and {} requests in view",
        status.nodes, status.requests
    )];
    for request in &status.serving {
        lines.push(format!("serving request {request}"));
    }
    for node in &status.settling {
        lines.push(format!("cleaning up node {node}"));
    }
    for pool in &status.pools {
        let state = match (pool.drained, pool.paused) {
            (true, _) => "drained",
            (false, true) => "waits for room",
            (false, false) => "accepts requests",
        };
        lines.push(format!("pool {} {state}", pool.pool));
    }
    for (provider, why) in &status.failed_providers {
        lines.push(format!("provider {provider} does not run: {why}"));
    }
    for drain in &status.drains {
        let (serving, nodes) = (drain.serving, drain.nodes);
        lines.push(format!(
            "drain of {}: {serving} requests, {nodes} nodes",
            drain.scope
        ));
    }
    lines.join("\n")
}
