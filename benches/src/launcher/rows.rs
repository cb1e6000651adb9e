//! The rows of the comparison.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nodeyard_store::Tree as _;

use super::Sizes;
use super::bare::Bare;
use super::configuration::{cloud, machines};
use super::contestant::{
    Arena, Bout, Meter, START_PATIENCE, Who, memory, own_memory, processor_time,
};
use super::load::{self, Outcome};
use crate::report::{self, Figure, brief, percentile, rate, ratio, times};

/// Writes that the contract needs for a request of 1.3 nodes.
const STATIC_WRITES: f64 = 26.0;
const CLOUD_WRITES: f64 = 29.0;
const AT_A_TIME: usize = 50;

/// What one launcher made of a load.
struct Result {
    outcome: Outcome,
    /// Sorted.
    gone_after: Vec<Duration>,
    transactions: f64,
    /// Milliseconds that the launcher computed for each request, and those of the load itself.
    computed: (f64, f64),
}

impl Result {
    fn effort(&self) -> String {
        let (launcher, load) = self.computed;
        format!(
            "a request took {:.1} transactions, {launcher:.1} ms of a core here and {load:.1} ms in the load",
            self.transactions
        )
    }
}

/// Prints each row as soon as it is there.
pub(crate) async fn all(arena: &Arena, sizes: &Sizes, limit: f64) {
    if sizes.wants("static") {
        let row = steady(arena, sizes, limit, Pool::Machines).await;
        let python_rate = row.as_ref().ok().and_then(|(_, python)| *python);
        show("static", row.map(|(figures, _)| figures));
        show("static", flat_out(arena, sizes, limit, python_rate).await);
    }
    if sizes.wants("cloud") {
        let row = steady(arena, sizes, limit, Pool::Cloud).await;
        show("cloud", row.map(|(figures, _)| figures));
    }
    if sizes.wants("single") {
        show("single", single(arena, sizes).await);
    }
    if sizes.wants("queue static") {
        show("queue static", queue(arena, sizes, Pool::Machines).await);
    }
    if sizes.wants("queue cloud") {
        show("queue cloud", queue(arena, sizes, Pool::Cloud).await);
    }
    if sizes.wants("idle") {
        show("idle", idle(arena, sizes).await);
    }
    if sizes.wants("restart") {
        show("restart", restart(arena, sizes).await);
    }
}

/// A row that cannot be measured does not cost the others.
fn show(row: &str, figures: anyhow::Result<Vec<Figure>>) {
    let failed = |error| vec![Figure::new(row, "failed").against(format!("{error:#}"))];
    report::print_figures(&figures.unwrap_or_else(failed));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pool {
    Machines,
    Cloud,
}

impl Pool {
    fn name(self) -> &'static str {
        match self {
            Pool::Machines => "static",
            Pool::Cloud => "cloud",
        }
    }

    fn configuration(self, count: usize) -> String {
        match self {
            Pool::Machines => machines(count),
            Pool::Cloud => cloud(count),
        }
    }

    /// Static nodes are there before they are asked for.
    async fn begin(self, arena: &Arena, who: Who, count: usize) -> anyhow::Result<Bout> {
        let bout = arena.begin(who, &self.configuration(count)).await?;
        match self {
            Pool::Machines => bout.zuul.ready_nodes(count, START_PATIENCE).await?,
            Pool::Cloud => {
                // One request is served before the clock starts.
                let first = bout.zuul.submit(200, &["small"]).await?;
                let first = tokio::time::timeout(START_PATIENCE, bout.zuul.fulfilled(first));
                bout.zuul.run_job(first.await??.id, Duration::ZERO).await?;
                bout.zuul.gone_after(START_PATIENCE).await;
            }
        }
        Ok(bout)
    }
}

async fn closed(
    arena: &Arena,
    who: Who,
    pool: Pool,
    requests: usize,
    use_time: Duration,
    limit: Duration,
) -> anyhow::Result<Result> {
    let bout = pool.begin(arena, who, 200).await?;
    let computed = || {
        let launcher = processor_time(bout.launcher.pid())?;
        anyhow::Ok((launcher, processor_time(std::process::id())?))
    };
    let before = arena.transactions()?;
    let computed_before = computed()?;
    let outcome = load::closed(&bout.zuul, requests, AT_A_TIME, use_time, limit).await?;
    let mut gone_after = bout.zuul.gone_after(Duration::from_secs(10)).await;
    let after = arena.transactions()?;
    let computed_after = computed()?;
    bout.end().await;
    gone_after.sort();
    let each = |total: f64| total / outcome.completed.max(1) as f64;
    Ok(Result {
        transactions: each((after - before) as f64),
        computed: (
            each(computed_after.0 - computed_before.0) * 1e3,
            each(computed_after.1 - computed_before.1) * 1e3,
        ),
        outcome,
        gone_after,
    })
}

/// Also returns Python's rate.
async fn steady(
    arena: &Arena,
    sizes: &Sizes,
    limit: f64,
    pool: Pool,
) -> anyhow::Result<(Vec<Figure>, Option<f64>)> {
    let requests = sizes.count(500);
    let use_time = match pool {
        Pool::Machines => Duration::from_millis(100),
        Pool::Cloud => Duration::ZERO,
    };
    let mut figures = Vec::new();
    let mut python: Option<Result> = None;
    for who in sizes.contestants() {
        let result = closed(arena, *who, pool, requests, use_time, sizes.time(60)).await?;
        let outcome = &result.outcome;
        let title = format!(
            "{}, pool of 200, {requests} requests, 50 at a time: {}",
            pool.name(),
            who.name()
        );
        let mut figure = Figure::new(title, rate(outcome.rate())).against(format!(
            "{}; {}",
            times("fulfilled", &outcome.fulfilled_after),
            result.effort()
        ));
        if *who == Who::Ours {
            let p50 = percentile(&outcome.fulfilled_after, 50);
            figure = match (pool, &python) {
                (Pool::Machines, Some(python)) => {
                    let ratio = outcome.rate() / python.outcome.rate();
                    figure.aim(
                        format!("9 times Python's rate: {ratio:.1} times"),
                        ratio >= 9.0,
                    )
                }
                (Pool::Machines, None) => figure,
                (Pool::Cloud, _) => figure.aim(
                    "p50 at most 0.25 s".to_owned(),
                    p50 <= Duration::from_millis(250),
                ),
            };
        }
        figures.push(figure);
        let mut figure = Figure::new(
            format!("  a returned node is gone after: {}", who.name()),
            brief(percentile(&result.gone_after, 50)),
        )
        .against(times("", &result.gone_after));
        if let (Who::Ours, Some(python)) = (who, &python) {
            let ratio = ratio(
                percentile(&python.gone_after, 50),
                percentile(&result.gone_after, 50),
            );
            figure = figure.aim(format!("1/50 of Python's p50: 1/{ratio:.0}"), ratio >= 50.0);
        }
        figures.push(figure);
        match who {
            Who::Python => python = Some(result),
            Who::Ours => {
                let writes = match pool {
                    Pool::Machines => STATIC_WRITES,
                    Pool::Cloud => CLOUD_WRITES,
                };
                figures.push(fraction(&result, writes, limit));
            }
        }
    }
    Ok((figures, python.map(|python| python.outcome.rate())))
}

/// Without pauses. Python's own sleeps are most of what it does then, so the yardstick is a program that does only
/// what the contract demands.
async fn flat_out(
    arena: &Arena,
    sizes: &Sizes,
    limit: f64,
    python_rate: Option<f64>,
) -> anyhow::Result<Vec<Figure>> {
    let requests = sizes.count(5_000);
    let time = sizes.time(60);
    let zuul = arena.clear().await?;
    let session = arena.session().await?;
    let bare = Bare::start(Arc::clone(&session) as _, 200).await?;
    let yardstick = load::closed(&zuul, requests, AT_A_TIME, Duration::ZERO, time).await?;
    drop(bare);
    session.close().await;
    zuul.close().await;

    let who = Who::Ours;
    let result = closed(arena, who, Pool::Machines, requests, Duration::ZERO, time).await?;
    let outcome = &result.outcome;
    let title = |who| format!("static, {requests} requests, given back at once: {who}");
    let mut against = times("fulfilled", &outcome.fulfilled_after);
    against += &format!("; {}", result.effort());
    if let Some(python) = python_rate {
        against += &format!("; {:.1} times Python's rate above", outcome.rate() / python);
    }
    let share = outcome.rate() / yardstick.rate();
    Ok(vec![
        Figure::new(title("the contract's writes alone"), rate(yardstick.rate()))
            .against(times("fulfilled", &yardstick.fulfilled_after)),
        Figure::new(title("Nodeyard"), rate(outcome.rate()))
            .against(against)
            .aim(
                format!("as fast as the contract's writes alone: {share:.2} of them"),
                share >= 0.99,
            ),
        fraction(&result, STATIC_WRITES, limit),
    ])
}

fn fraction(result: &Result, writes: f64, limit: f64) -> Figure {
    let done = result.outcome.rate() * result.transactions;
    let contract = result.outcome.rate() * writes;
    Figure::new(
        "  share of what the server can",
        format!("{:.1} %", done / limit * 100.0),
    )
    .against(format!(
        "{}; {:.1} % with the {writes} writes of the contract",
        rate(done),
        contract / limit * 100.0
    ))
}

async fn single(arena: &Arena, sizes: &Sizes) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut python: Option<Outcome> = None;
    for who in sizes.contestants() {
        let requests = sizes.count(match who {
            Who::Python => 60,
            Who::Ours => 500,
        });
        let bout = Pool::Machines.begin(arena, *who, 200).await?;
        let time = sizes.time(60);
        let outcome = load::closed(&bout.zuul, requests, 1, Duration::ZERO, time).await?;
        bout.end().await;
        let title = format!("one request at a time, a node is ready: {}", who.name());
        let mut figure = Figure::new(title, brief(percentile(&outcome.fulfilled_after, 50)))
            .against(times("fulfilled", &outcome.fulfilled_after));
        if let Some(python) = &python {
            let at = |percent| {
                ratio(
                    percentile(&python.fulfilled_after, percent),
                    percentile(&outcome.fulfilled_after, percent),
                )
            };
            let (p50, p99) = (at(50), at(99));
            figure = figure.aim(
                format!("p50 1/60, p99 1/20 of Python's: 1/{p50:.0}, 1/{p99:.0}"),
                p50 >= 60.0 && p99 >= 20.0,
            );
        }
        figures.push(figure);
        python = Some(outcome);
    }
    Ok(figures)
}

async fn queue(arena: &Arena, sizes: &Sizes, pool: Pool) -> anyhow::Result<Vec<Figure>> {
    let requests = sizes.count(3_000);
    let (use_time, wanted) = match pool {
        Pool::Machines => (Duration::from_millis(500), 5.0),
        Pool::Cloud => (Duration::ZERO, 20.0),
    };
    let mut figures = Vec::new();
    let mut python: Option<f64> = None;
    for who in sizes.contestants() {
        let bout = pool.begin(arena, *who, 100).await?;
        let outcome = load::queue(&bout.zuul, requests, use_time, sizes.time(60)).await?;
        bout.end().await;
        let urgent = format!(
            "{} of {} urgent ones served, {}, {} others first (median)",
            outcome.urgent_after.len(),
            outcome.urgent_submitted,
            times("", &outcome.urgent_after),
            outcome
                .overtaken_by
                .get(outcome.overtaken_by.len() / 2)
                .unwrap_or(&0),
        );
        let title = format!(
            "{}, {requests} queued on 100 nodes: {}",
            pool.name(),
            who.name()
        );
        let mut figure = Figure::new(title, rate(outcome.rate())).against(urgent);
        if let Some(python) = python {
            let ratio = outcome.rate() / python;
            figure = figure.aim(
                format!("{wanted} times Python's rate: {ratio:.1} times"),
                ratio >= wanted,
            );
        }
        figures.push(figure);
        python = Some(outcome.rate());
    }
    Ok(figures)
}

/// Long enough for several of the rounds that come every half minute and every minute.
async fn idle(arena: &Arena, sizes: &Sizes) -> anyhow::Result<Vec<Figure>> {
    const NODES: usize = 1_000;
    let watched = sizes.time(180);
    let mut figures = Vec::new();
    let mut python = None;
    for who in sizes.contestants() {
        let bout = Pool::Machines.begin(arena, *who, NODES).await?;
        let pid = bout.launcher.pid();
        // What the start has left to do is not counted.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let share = Meter::new(pid).measure(watched).await? / watched.as_secs_f64();
        let (megabytes, own) = (memory(pid)?, own_memory(pid)?);
        bout.end_in_order().await;
        let title = format!("idle with {NODES} ready nodes: {}", who.name());
        let value = format!("{:.3} % of a core", share * 100.0);
        let mut figure = Figure::new(title, value)
            .against(format!("{megabytes:.0} MB, of which {own:.0} are its own"));
        if let Some((python_share, python_megabytes)) = python {
            let less: f64 = python_share / share;
            let smaller: f64 = python_megabytes / megabytes;
            figure = figure.aim(
                format!("1/20 and 1/8 of Python's: 1/{less:.0}, 1/{smaller:.1}"),
                less >= 20.0 && smaller >= 8.0,
            );
        }
        figures.push(figure);
        python = Some((share, megabytes));
    }
    Ok(figures)
}

/// Both find the records that ours has made; they are the same.
async fn restart(arena: &Arena, sizes: &Sizes) -> anyhow::Result<Vec<Figure>> {
    let records = sizes.count(2_000);
    let configuration = machines(records);
    let bout = Pool::Machines.begin(arena, Who::Ours, records).await?;
    bout.launcher.terminate();
    let mut figures = Vec::new();
    let mut python = None;
    for who in sizes.contestants() {
        let submitted = bout.zuul.submit(200, &["small"]).await?;
        let started = Instant::now();
        let launcher = arena.launch(*who, &configuration)?;
        let fulfilled = tokio::time::timeout(START_PATIENCE, bout.zuul.fulfilled(submitted));
        let id = fulfilled.await??.id;
        let elapsed = started.elapsed();
        bout.zuul.run_job(id, Duration::ZERO).await?;
        bout.zuul.gone_after(Duration::from_secs(10)).await;
        launcher.terminate();
        let title = format!(
            "restart with {records} nodes to the first node handed out: {}",
            who.name()
        );
        let mut figure = Figure::new(title, brief(elapsed));
        if let Some(python) = python {
            let ratio = ratio(python, elapsed);
            figure = figure.aim(format!("1/20 of Python's: 1/{ratio:.0}"), ratio >= 20.0);
        }
        figures.push(figure);
        python = Some(elapsed);
    }
    bout.zuul.close().await;
    Ok(figures)
}
