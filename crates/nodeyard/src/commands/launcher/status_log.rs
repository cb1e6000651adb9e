//! Logs what the launcher is doing on SIGUSR2. Nodepool logs the stacks of its threads; tasks are not bound to threads
//! here, so they are listed by what they work on.

use nodeyard_launcher::{LauncherHandle, LauncherStatus};
use tracing::info;

use crate::commands::signals;

/// Handles signals as long as the launcher runs.
pub(super) async fn run(launcher: LauncherHandle) -> anyhow::Result<()> {
    let mut status_requests = signals::status_requests()?;
    while status_requests.recv().await.is_some() {
        let Some(status) = launcher.status().await else {
            break;
        };
        info!("{}", text(&status));
    }
    Ok(())
}

fn text(status: &LauncherStatus) -> String {
    let mut lines = vec![format!(
        "launcher with {} nodes and {} requests",
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
            (false, true) => "is paused",
            (false, false) => "accepts requests",
        };
        lines.push(format!("pool {} {state}", pool.pool));
    }
    for (provider, why) in &status.failed_providers {
        lines.push(format!("provider {provider} failed to start: {why}"));
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
