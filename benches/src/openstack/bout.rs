//! One launcher, from the requests to the last server that is gone.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nodeyard_testbeds::Launcher;
use nodeyard_testbeds::openstack::{Call, Gateway, Observer, OpenStack, Service};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::watch::Watch;
use crate::launcher::{Arena, START_PATIENCE, Who, processor_time};

const PATIENCE: Duration = Duration::from_secs(900);

pub(crate) struct Outcome {
    launching: Vec<Call>,
    removing: Vec<Call>,
    /// From a request to the call that makes its server.
    pub(crate) to_create: Duration,
    /// From a server that is active to a record that says so.
    pub(crate) to_ready: Duration,
    pub(crate) all_ready: Duration,
    pub(crate) all_gone: Duration,
    /// Seconds of processor time.
    pub(crate) computed: f64,
}

impl Outcome {
    pub(crate) fn launching(&self) -> usize {
        self.launching.len()
    }

    pub(crate) fn removing(&self) -> usize {
        self.removing.len()
    }

    pub(crate) fn calls(&self) -> usize {
        self.launching() + self.removing()
    }

    pub(crate) fn own_time(&self) -> Duration {
        self.to_create + self.to_ready
    }

    pub(crate) fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for call in self.launching.iter().chain(&self.removing) {
            *kinds.entry(call.kind()).or_default() += 1;
        }
        kinds
    }
}

/// Nothing limits the launchers but the cloud and themselves.
fn configuration(servers: usize) -> String {
    format!(
        "labels: [{{name: small}}]\n\
         providers:\n\
         - name: cloud\n  \
           driver: openstack\n  \
           cloud: nodepool\n  \
           rate: 0.001\n  \
           cloud-images: [{{name: disk}}]\n  \
           pools:\n  \
           - name: main\n    \
             max-servers: {servers}\n    \
             networks: [net]\n    \
             auto-floating-ip: false\n    \
             host-key-checking: false\n    \
             labels: [{{name: small, cloud-image: disk, flavor-name: tiny}}]\n"
    )
}

pub(crate) async fn hold(
    arena: &Arena,
    cloud: &OpenStack,
    who: Who,
    count: usize,
) -> anyhow::Result<Outcome> {
    let project = cloud.project("bench")?;
    project.set_quota(&[("instances", -1), ("cores", -1), ("ram", -1)])?;
    project.set_network_quota(&[("port", -1)])?;
    project.create_image("disk", json!({}))?;
    let gateway = Gateway::start(cloud)?;
    let clouds = project.clouds_yaml_through(&gateway)?;
    // Without a public address Python's driver knows of none, unless it is told that private ones will do.
    let private = fs::read_to_string(&clouds)? + "    private: true\n";
    fs::write(&clouds, private)?;
    let zuul = arena.clear().await?;
    let configuration = configuration(count);
    let options = arena
        .options(who, &configuration)
        .env("OS_CLIENT_CONFIG_FILE", clouds.display().to_string());
    let launcher = Launcher::start(&arena.server, &options)?;

    // One request is served before the clock starts.
    let first = zuul.submit(200, &["small"]).await?;
    let first = timeout(START_PATIENCE, zuul.fulfilled(first)).await?;
    let first = first.with_context(|| complaints(&launcher))?;
    zuul.run_job(first.id, Duration::ZERO).await?;
    zuul.gone_after(START_PATIENCE).await;

    let watch = Watch::start(&zuul.registry).await?;
    let observer = Observer::start(cloud, &project)?;
    let computed = processor_time(launcher.pid())?;
    gateway.reset_counts();
    let began = Instant::now();
    let mut requested = Vec::new();
    let mut waiting = JoinSet::new();
    for _ in 0..count {
        requested.push(Instant::now());
        let submitted = zuul.submit(200, &["small"]).await?;
        let zuul = std::sync::Arc::clone(&zuul);
        waiting.spawn(async move { zuul.fulfilled(submitted).await });
    }
    let mut fulfilled = Vec::new();
    while let Some(done) = timeout(PATIENCE, waiting.join_next()).await? {
        fulfilled.push(done??.id);
    }
    let all_ready = began.elapsed();
    let launching = gateway.calls();
    let to_create = mean(&requested, &creations(&launching, count)?)?;
    let (active, ready): (Vec<_>, Vec<_>) = {
        let ready = watch.ready();
        let pairs = observer.active().into_iter();
        pairs
            .filter_map(|(server, active)| Some((active, *ready.get(&server)?)))
            .unzip()
    };
    ensure!(ready.len() == count, "{} of {count} were seen", ready.len());
    let to_ready = mean(&active, &ready)?;

    gateway.reset_counts();
    let began = Instant::now();
    for id in fulfilled {
        zuul.run_job(id, Duration::ZERO).await?;
    }
    zuul.gone_after(PATIENCE).await;
    let all_gone = began.elapsed();
    let outcome = Outcome {
        launching,
        removing: gateway.calls(),
        to_create,
        to_ready,
        all_ready,
        all_gone,
        computed: processor_time(launcher.pid())? - computed,
    };
    launcher.kill();
    zuul.close().await;
    drop((observer, watch, gateway));
    Ok(outcome)
}

/// What a launcher that does not serve says about it.
fn complaints(launcher: &Launcher) -> String {
    let log = fs::read_to_string(launcher.log()).unwrap_or_default();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("WARNING"))
        .collect();
    lines.join("\n")
}

/// When the servers were asked for. What was refused has had to be asked for again.
fn creations(calls: &[Call], count: usize) -> anyhow::Result<Vec<Instant>> {
    let made = |call: &&Call| {
        call.service == Service::Compute
            && call.method == "POST"
            && call.path.ends_with("/servers")
            && call.status == Some(202)
    };
    let times: Vec<Instant> = calls.iter().filter(made).map(|call| call.began).collect();
    ensure!(
        times.len() == count,
        "{} servers for {count} requests",
        times.len()
    );
    Ok(times)
}

/// The mean of the times from one to the other. Whether they belong together does not matter for it.
fn mean(from: &[Instant], to: &[Instant]) -> anyhow::Result<Duration> {
    let start = from.iter().chain(to).min().copied();
    let start = start.context("nothing was measured")?;
    let sum = |times: &[Instant]| -> Duration { times.iter().map(|time| *time - start).sum() };
    let count = u32::try_from(from.len())?;
    Ok(sum(to).saturating_sub(sum(from)) / count)
}
