//! The HTTP API under load: many clients that each take a node, wait for it and give it back, again and again, on the
//! embedded store and on ZooKeeper.
//!
//! `nodeyard up` runs as a process of its own and is not told that it is measured. Every client follows the events of
//! leases beside what it does, so each event is delivered as often as there are clients, and counted as often.

mod client;
mod listen;
mod yard;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use nodeyard_testbeds::ZooKeeperServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::client::Client;
use self::listen::{Delays, listen};
use self::yard::{Store, Yard};
use crate::report::{self, Figure, rate};

/// How large the load of the API's benchmark is
#[derive(Debug, Clone, Args)]
pub(crate) struct Load {
    /// Clients of the API that work at once
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Requests that all clients make together
    #[arg(long, default_value_t = 1000)]
    requests: usize,
}

/// For the last events, when all clients are done.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run has shown.
struct Outcome {
    took: Duration,
    create: Vec<Duration>,
    /// From the question to the node.
    node: Vec<Duration>,
    events: Delays,
    /// Megabytes: before, and the most that it had.
    memory: (f64, f64),
}

pub(crate) async fn measure(program: Option<&Path>, load: &Load) -> anyhow::Result<()> {
    let binary = crate::launcher::program(program)?;
    let server = ZooKeeperServer::start()?;
    for store in [Store::Embedded, Store::ZooKeeper(&server)] {
        let title = format!(
            "HTTP API, {} requests from {} clients, simulated cloud, {}",
            load.requests,
            load.clients,
            store.name()
        );
        let yard = Yard::start(&binary, &store).await?;
        let outcome = run(&yard, load).await?;
        yard.end()?;
        report::print(&title, &figures(outcome, load));
    }
    Ok(())
}

async fn run(yard: &Yard, load: &Load) -> anyhow::Result<Outcome> {
    let before = yard.memory()?;
    let mut listeners = JoinSet::new();
    for _ in 0..load.clients {
        let events = yard.client().events("kind=lease").await?;
        listeners.spawn(listen(events, load.requests));
    }
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        let share =
            load.requests / load.clients + usize::from(number < load.requests % load.clients);
        clients.spawn(work(yard.client(), share));
    }
    let (mut create, mut node) = (Vec::new(), Vec::new());
    while let Some(done) = clients.join_next().await {
        let (creates, nodes) = done??;
        create.extend(creates);
        node.extend(nodes);
    }
    let took = begun.elapsed();
    let events = timeout(PATIENCE, all(listeners)).await;
    let events = events.context("not every stream has told of every lease")??;
    Ok(Outcome {
        took,
        create,
        node,
        events,
        memory: (before, yard.most_memory()?),
    })
}

async fn all(mut listeners: JoinSet<anyhow::Result<Delays>>) -> anyhow::Result<Delays> {
    let mut delays = Delays::default();
    while let Some(heard) = listeners.join_next().await {
        delays.extend(heard??);
    }
    Ok(delays)
}

/// Takes nodes and gives them back; says how long the questions took, and how long the nodes.
async fn work(client: Client, requests: usize) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut creates, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..requests {
        let asked = Instant::now();
        let body = json!({"labels": ["small"], "duration": 3600});
        let lease = client.call("POST", "/requests", Some(&body)).await?;
        creates.push(asked.elapsed());
        let id = text(&lease, "id")?;
        loop {
            let lease = client
                .call("GET", &format!("/leases/{id}?wait=60"), None)
                .await?;
            match &*text(&lease, "phase")? {
                "active" => break,
                "waiting" | "taking" => {}
                _ => anyhow::bail!("a lease has no node: {lease}"),
            }
        }
        nodes.push(asked.elapsed());
        client
            .call("DELETE", &format!("/leases/{id}"), None)
            .await?;
    }
    Ok((creates, nodes))
}

fn text(object: &Value, key: &str) -> anyhow::Result<String> {
    let text = object.get(key).and_then(Value::as_str);
    Ok(text
        .with_context(|| format!("no {key} in {object}"))?
        .to_owned())
}

fn figures(outcome: Outcome, load: &Load) -> Vec<Figure> {
    let quantiles = |mut times: Vec<Duration>| {
        times.sort_unstable();
        report::times("", &times)
    };
    let per_second = load.requests as f64 / outcome.took.as_secs_f64();
    let (before, most) = outcome.memory;
    let Delays {
        from_record,
        from_notice,
    } = outcome.events;
    let counted = |times: &[Duration]| format!("{} on {} streams", times.len(), load.clients);
    let (leases, changes) = (counted(&from_record), counted(&from_notice));
    vec![
        Figure::new("nodes taken and given back", rate(per_second)),
        Figure::new("answer to a new request", quantiles(outcome.create)),
        Figure::new("from the request to the node", quantiles(outcome.node)),
        Figure::new(
            "from a new lease to its event on every stream",
            quantiles(from_record),
        )
        .against(leases),
        Figure::new(
            "from any change that is noticed to its event",
            quantiles(from_notice),
        )
        .against(changes),
        Figure::new("memory of the process at most", format!("{most:.0} MB"))
            .against(format!("{before:.0} MB before")),
    ]
}
