//! Sends gauges to statsd: this launcher's own, and for all launchers if it is elected.

use std::time::Duration;

use nodeyard_model::layout;
use nodeyard_store::election::{Election, identifier};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Error, Result, TreePath};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Statsd, StatsdBatch, names};
use crate::counts::RecordCounts;
use crate::metrics::Metrics;
use crate::views::StatusViews;

/// The minimum time between two reports.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum time between two reports: datagrams can be lost, and servers can restart.
const REPEAT: Duration = Duration::from_secs(10);
/// The pause after a failed election.
const RETRY: Duration = Duration::from_secs(5);
/// How long a shutdown waits for the leadership to be released.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Sends gauges to statsd.
#[derive(Debug)]
pub struct StatsdReporter {
    metrics: Metrics,
    views: StatusViews,
    election: Election,
    hostname: Box<str>,
}

impl StatsdReporter {
    /// Creates a reporter of the records in `views` and the limits in `metrics`. Must be run to take effect.
    pub fn new(
        metrics: Metrics,
        views: StatusViews,
        registry: &Registry,
        hostname: &str,
    ) -> Result<Self> {
        let path = TreePath::new(layout::STATS_ELECTION)?;
        Ok(Self {
            metrics,
            views,
            election: Election::new(registry.locks(), path, &identifier(hostname)),
            hostname: hostname.into(),
        })
    }

    /// Runs until `shutdown`. Returns at once if statsd is not configured.
    pub async fn run(self, shutdown: CancellationToken) {
        let Some(statsd) = self.metrics.statsd() else {
            return;
        };
        tokio::select! {
            () = self.lead(statsd, &shutdown) => {}
            () = self.report_own(statsd) => {}
        }
    }

    /// Sends the gauges of this launcher, whether or not it leads.
    async fn report_own(&self, statsd: &Statsd) {
        loop {
            self.metrics.repeat_limits();
            statsd.send(|batch| self.send_backlog(batch));
            sleep(REPEAT).await;
        }
    }

    fn send_backlog(&self, batch: &mut StatsdBatch<'_>) {
        let mut gauge = |what: &str, count: usize| {
            batch.gauge(&names::store(&self.hostname, what), count);
        };
        let views = &self.views;
        gauge("client.connection_queue", views.tree.unanswered());
        for (cache, backlog) in [
            ("node", views.nodes.backlog()),
            ("request", views.requests.backlog()),
            ("image", views.images.backlog()),
        ] {
            gauge(&format!("{cache}_cache.event_queue"), backlog.events);
            gauge(&format!("{cache}_cache.playback_queue"), backlog.reads);
        }
    }

    /// Takes part in elections and reports while it leads, until `shutdown`. Releases the leadership at the end.
    async fn lead(&self, statsd: &Statsd, shutdown: &CancellationToken) {
        loop {
            let leadership = tokio::select! {
                () = shutdown.cancelled() => return,
                leadership = self.election.lead() => leadership,
            };
            let result = match leadership {
                Ok(leadership) => tokio::select! {
                    () = shutdown.cancelled() => {
                        // Without the store, the leadership ends with the session.
                        let released = timeout(RELEASE_LIMIT, leadership.release()).await;
                        if let Ok(Err(error)) = released {
                            warn_election_failed(&error);
                        }
                        return;
                    }
                    () = leadership.lost() => Ok(()),
                    result = self.report(statsd) => result,
                },
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                warn_election_failed(&error);
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = sleep(RETRY) => {}
                }
            }
        }
    }

    /// Reports until an error occurs.
    async fn report(&self, statsd: &Statsd) -> Result<()> {
        let views = &self.views;
        let mut nodes = views.nodes.changes();
        let mut requests = views.requests.changes();
        let mut pools = views.pools.changes();
        views.synced().await?;
        loop {
            let sent = Instant::now();
            let (counted, statsd) = (views.clone(), statsd.clone());
            let sending =
                tokio::task::spawn_blocking(move || send(&statsd, &RecordCounts::take(&counted)));
            if let Err(error) = sending.await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "failed to send gauges to statsd"
                );
            }
            tokio::select! {
                Some(_) = nodes.next() => {}
                Some(_) = requests.next() => {}
                Some(_) = pools.next() => {}
                () = sleep_until(sent + REPEAT) => {}
            }
            sleep_until(sent + PAUSE).await;
        }
    }
}

fn warn_election_failed(error: &Error) {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "failed to take part in the statistics election"
    );
}

fn send(statsd: &Statsd, counts: &RecordCounts) {
    statsd.send(|batch| {
        for (state, count) in counts.nodes.iter() {
            batch.gauge(&names::nodes(state), count);
        }
        for (provider, counts) in &counts.by_provider {
            for (state, count) in counts.iter() {
                batch.gauge(&names::provider_nodes(provider, state), count);
            }
        }
        for (label, counts) in &counts.by_label {
            for (state, count) in counts.iter() {
                batch.gauge(&names::label_nodes(label, state), count);
            }
        }
        for ((provider, pool), count) in &counts.addressable {
            batch.gauge(&names::addressable_requests(provider, pool), count);
        }
    });
}
