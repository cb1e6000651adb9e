//! Pods in a real cluster: our driver beside Python Nodepool's, in turns.
//!
//! The cluster takes its time from a pod that was made to one that runs, and takes it for both. What counts is what a
//! launcher adds to that, before and after, and how often it calls the API server, which counts that itself.

mod audit;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use nodeyard_model::{RequestId, now};
use nodeyard_testbeds::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::audit::Audit;
use crate::launcher::{Arena, OPTIMISED, START_PATIENCE, Sizes, Who, Zuul, processor_time};
use crate::report::{self, Figure, brief, percentile, ratio, times};

const PODS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(300);

/// What a launcher made of it.
struct Result {
    /// Until the last pod was handed out.
    all_ready: Duration,
    /// From a pod that was made to one that runs. Sorted, as the other times.
    cluster: Vec<Duration>,
    /// From a request to its node, without the above.
    added: Vec<Duration>,
    /// Of each of them, before the pod was made.
    before: Vec<Duration>,
    gone_after: Vec<Duration>,
    /// For each pod, until it was handed out.
    calls: f64,
    /// For each pod, until it was gone.
    all_calls: f64,
    /// Milliseconds of a core for each pod.
    computed: f64,
}

/// Prints as it goes.
pub(crate) async fn measure(program: Option<&Path>, sizes: &Sizes) -> anyhow::Result<()> {
    let pods = sizes.count(PODS);
    report::print_title(&format!("{pods} pods requested at once in a cluster"));
    if !OPTIMISED {
        report::print_title("  this is a debug build: for a look, not for the record");
    }
    let cluster = Cluster::start_audited()?;
    let arena = Arena::new(program)?;
    let mut python = None;
    for who in sizes.contestants() {
        let result = bout(&arena, &cluster, *who, pods).await?;
        report::print_figures(&figures(*who, &result, python.as_ref()));
        python = Some(result);
    }
    Ok(())
}

fn figures(who: Who, result: &Result, python: Option<&Result>) -> Vec<Figure> {
    let median = |times: &[Duration]| percentile(times, 50);
    let all = Figure::new(
        format!("all are ready: {}", who.name()),
        brief(result.all_ready),
    )
    .against(times(
        "from pod made to running, which is the cluster's own",
        &result.cluster,
    ));
    let mut added =
        Figure::new("  added to that for a pod", brief(median(&result.added))).against(format!(
            "{}; {} of it before the pod is made",
            times("", &result.added),
            brief(median(&result.before))
        ));
    let mut calls = Figure::new(
        "  calls of the API server until a pod is ready",
        format!("{:.1}", result.calls),
    );
    let mut all_calls = Figure::new(
        "  calls of the API server until a pod is gone",
        format!("{:.1}", result.all_calls),
    );
    if let Some(python) = python {
        let part = ratio(median(&python.added), median(&result.added));
        added = added.aim(format!("1/10 of Python's p50: 1/{part:.0}"), part >= 10.0);
        let half = |figure: Figure, ours: f64, theirs: f64| {
            let share = ours / theirs;
            figure.aim(format!("half of Python's: {share:.2}"), share <= 0.5)
        };
        calls = half(calls, result.calls, python.calls);
        all_calls = half(all_calls, result.all_calls, python.all_calls);
    }
    let gone = Figure::new(
        "  a returned pod is gone after",
        brief(median(&result.gone_after)),
    )
    .against(times("", &result.gone_after));
    let computed = Figure::new(
        "  computing for a pod",
        format!("{:.0} ms", result.computed),
    );
    vec![all, added, calls, all_calls, gone, computed]
}

async fn bout(arena: &Arena, cluster: &Cluster, who: Who, pods: usize) -> anyhow::Result<Result> {
    let account = Account::new(cluster, who)?;
    let zuul = arena.clear().await?;
    let configuration = configuration(&cluster.image());
    let launcher = arena.launch_in_cluster(who, &configuration, &account.kubeconfig)?;
    // One request is served before the clock starts.
    let first = timeout(START_PATIENCE, serve(&zuul, 1)).await;
    let first = first.map_err(Into::into).flatten();
    let first = first.with_context(|| end_of(launcher.log()))?;
    give_back(&zuul, &first).await?;
    zuul.gone_after(PATIENCE).await;

    let computed_before = processor_time(launcher.pid())?;
    let began = SystemTime::from(now());
    let served = timeout(PATIENCE, serve(&zuul, pods)).await;
    let served = served.map_err(Into::into).flatten();
    let served = served.with_context(|| end_of(launcher.log()))?;
    let all_served = SystemTime::from(now());
    give_back(&zuul, &served).await?;
    let mut gone_after = zuul.gone_after(PATIENCE).await;
    gone_after.sort();
    let computed = processor_time(launcher.pid())? - computed_before;
    let all_gone = SystemTime::from(now());
    // What is asked last is written down last.
    cluster.kubectl(&["get", "namespaces"])?;
    let log = cluster.audit_log().context("the cluster is not ours")?;
    let audit = timeout(PATIENCE, Audit::read_until(all_gone, &log)).await??;
    launcher.kill();
    zuul.close().await;

    let each = |total: f64| total / pods as f64;
    let calls = |until| each(audit.calls(&account.user, began, until) as f64);
    let mut result = Result {
        all_ready: all_served.duration_since(began)?,
        cluster: Vec::new(),
        added: Vec::new(),
        before: Vec::new(),
        gone_after,
        calls: calls(all_served),
        all_calls: calls(all_gone),
        computed: each(computed * 1e3),
    };
    for pod in &served {
        let Some((created, running)) = audit.pod(&pod.namespace) else {
            bail!("the API server does not know the pod in {}", pod.namespace);
        };
        let own = running.duration_since(created)?;
        result.cluster.push(own);
        result.added.push(pod.after.saturating_sub(own));
        result.before.push(created.duration_since(pod.requested)?);
    }
    for times in [&mut result.cluster, &mut result.added, &mut result.before] {
        times.sort();
    }
    Ok(result)
}

async fn give_back(zuul: &Zuul, served: &[Served]) -> anyhow::Result<()> {
    for pod in served {
        zuul.run_job(pod.request, Duration::ZERO).await?;
    }
    Ok(())
}

/// What a launcher said last.
fn end_of(log: &Path) -> String {
    const LINES: usize = 40;
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(LINES);
    lines.get(first..).unwrap_or_default().join("\n")
}

struct Served {
    request: RequestId,
    namespace: String,
    requested: SystemTime,
    after: Duration,
}

/// So many requests at once.
async fn serve(zuul: &Arc<Zuul>, pods: usize) -> anyhow::Result<Vec<Served>> {
    let mut requests = JoinSet::new();
    for _ in 0..pods {
        let zuul = Arc::clone(zuul);
        requests.spawn(async move {
            let requested = SystemTime::from(now());
            let submitted = zuul.submit(200, &["small"]).await?;
            let fulfilled = zuul.fulfilled(submitted).await?;
            let record = zuul.registry.requests().get(fulfilled.id).await?;
            let record = record.context("the request is gone")?.value;
            let node = record.nodes.first().context("the request got no node")?;
            anyhow::Ok(Served {
                request: fulfilled.id,
                // The names of both.
                namespace: format!("main-{node}"),
                requested,
                after: fulfilled.after,
            })
        });
    }
    let mut served = Vec::with_capacity(pods);
    while let Some(pod) = requests.join_next().await {
        served.push(pod??);
    }
    Ok(served)
}

fn configuration(image: &str) -> String {
    format!(
        "labels: [{{name: small}}]\n\
         providers:\n\
         - name: cluster\n  \
           driver: kubernetes\n  \
           context: test\n  \
           pools:\n  \
           - name: main\n    \
             labels: [{{name: small, type: pod, image: '{image}'}}]\n"
    )
}

/// Somebody whom the API server tells apart from everybody else.
struct Account {
    user: String,
    kubeconfig: PathBuf,
    _directory: TempDir,
}

impl Account {
    fn new(cluster: &Cluster, who: Who) -> anyhow::Result<Self> {
        let name = who.name().to_lowercase();
        cluster.kubectl(&["create", "serviceaccount", &name])?;
        cluster.kubectl(&[
            "create",
            "clusterrolebinding",
            &name,
            "--clusterrole=cluster-admin",
            &format!("--serviceaccount=default:{name}"),
        ])?;
        let token = cluster.kubectl(&["create", "token", &name, "--duration=6h"])?;
        let directory = TempDir::new()?;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, with_token(cluster.kubeconfig(), &token)?)?;
        Ok(Self {
            user: format!("system:serviceaccount:default:{name}"),
            kubeconfig,
            _directory: directory,
        })
    }
}

fn with_token(kubeconfig: &Path, token: &str) -> anyhow::Result<String> {
    let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig)?)?;
    let users = config.get_mut("users").context("a kubeconfig has users")?;
    *users = json!([{"name": "user", "user": {"token": token}}]);
    Ok(config.to_string())
}
