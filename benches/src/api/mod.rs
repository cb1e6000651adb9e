//! The HTTP API under load: many clients that each take a node, wait for it and give it back, again and again, on the
//! embedded store and on ZooKeeper.
//!
//! `nodeyard up` runs as a process of its own and is not told that it is measured. Every client follows the events of
//! leases beside what it does, so each event is delivered as often as there are clients.

mod client;
mod yard;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use nodeyard_testbeds::ZooKeeperServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::client::Client;
use self::yard::{Store, Yard};
use crate::report::{self, Figure, rate};

/// For what comes by itself, once its cause is there.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// When each lease was asked for and answered, and when its first event came.
#[derive(Default)]
struct Times {
    asked: HashMap<String, (Instant, Instant)>,
    heard: Vec<(String, Instant)>,
}

type Shared = Arc<Mutex<Times>>;

/// What a run has shown.
struct Outcome {
    took: Duration,
    create: Vec<Duration>,
    /// From the question to the node.
    node: Vec<Duration>,
    event: Vec<Duration>,
    deliveries: usize,
    idle: f64,
    busy: f64,
}

pub(crate) async fn measure(load: &Load) -> anyhow::Result<()> {
    let binary = crate::launcher::build()?;
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
        report::print(&title, &figures(outcome, load));
    }
    Ok(())
}

async fn run(yard: &Yard, load: &Load) -> anyhow::Result<Outcome> {
    let idle = yard.memory()?;
    let times = Shared::default();
    let mut listeners = JoinSet::new();
    for number in 0..load.clients {
        let events = yard.client().events("kind=lease").await?;
        listeners.spawn(listen(events, (number == 0).then(|| Arc::clone(&times))));
    }
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        let share =
            load.requests / load.clients + usize::from(number < load.requests % load.clients);
        clients.spawn(work(yard.client(), share, Arc::clone(&times)));
    }
    let (mut create, mut node) = (Vec::new(), Vec::new());
    while let Some(done) = clients.join_next().await {
        let (creates, nodes) = done??;
        create.extend(creates);
        node.extend(nodes);
    }
    let took = begun.elapsed();
    let busy = yard.memory()?;
    // The last events are on their way. Whether all have come is checked below.
    let _ = timeout(PATIENCE, all_heard(&times, load.requests)).await;
    let times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    let event = times.heard.iter().filter_map(|(id, heard)| {
        let (_, answered) = times.asked.get(id)?;
        Some(heard.saturating_duration_since(*answered))
    });
    let event: Vec<Duration> = event.collect();
    ensure!(
        event.len() == load.requests,
        "{} of {} leases were heard of",
        event.len(),
        load.requests
    );
    listeners.abort_all();
    Ok(Outcome {
        took,
        create,
        node,
        event,
        deliveries: load.clients,
        idle,
        busy,
    })
}

async fn all_heard(times: &Shared, leases: usize) {
    let heard = || {
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        times.heard.len()
    };
    while heard() < leases {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Notes when the first event of each lease comes.
async fn listen(mut events: client::Events, times: Option<Shared>) -> anyhow::Result<()> {
    let mut known = std::collections::HashSet::new();
    loop {
        let event = events.next().await?;
        let heard = Instant::now();
        let Some(times) = &times else { continue };
        let event: Value = serde_json::from_slice(&event)?;
        let id = text(&event, "id")?;
        if known.insert(id.clone()) {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            times.heard.push((id, heard));
        }
    }
}

/// Takes nodes and gives them back; says how long the questions took, and how long the nodes.
async fn work(
    client: Client,
    requests: usize,
    times: Shared,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut creates, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..requests {
        let asked = Instant::now();
        let body = json!({"labels": ["small"], "duration": 3600});
        let lease = client.call("POST", "/requests", Some(&body)).await?;
        let answered = Instant::now();
        let id = text(&lease, "id")?;
        {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            times.asked.insert(id.clone(), (asked, answered));
        }
        creates.push(answered - asked);
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
    vec![
        Figure::new("nodes taken and given back", rate(per_second)),
        Figure::new("answer to a new request", quantiles(outcome.create)),
        Figure::new("from the request to the node", quantiles(outcome.node)),
        Figure::new("from that answer to its event", quantiles(outcome.event))
            .against(format!("each of {} streams is told", outcome.deliveries)),
        Figure::new("memory of the process", format!("{:.0} MB", outcome.busy))
            .against(format!("{:.0} MB before", outcome.idle)),
    ]
}
