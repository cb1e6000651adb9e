//! Reports what exists, from one launcher for all.

use std::time::Duration;

use nodeyard_model::layout;
use nodeyard_store::election::{Election, identifier};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Error, Result, TreePath};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Batch, Statsd, names};
use crate::census::Census;
use crate::metrics::Metrics;
use crate::views::Views;

/// Between two reports, however much changes.
const PAUSE: Duration = Duration::from_secs(1);
/// Everything is sent again even if nothing changes: datagrams get lost, and servers forget.
const REPEAT: Duration = Duration::from_secs(10);
/// After an error of the election.
const RETRY: Duration = Duration::from_secs(5);
/// How long a stop waits for the leadership to be given back.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Reporter {
    metrics: Metrics,
    views: Views,
    election: Election,
    hostname: Box<str>,
}

impl Reporter {
    /// Reports what `views` show and the limits that `metrics` was told, by way of its statsd.
    pub fn new(
        metrics: Metrics,
        views: Views,
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

    /// Works until `shutdown`; without statsd there is nothing to do.
    pub async fn run(self, shutdown: CancellationToken) {
        let Some(statsd) = self.metrics.statsd() else {
            return;
        };
        tokio::select! {
            () = self.lead(statsd, &shutdown) => {}
            () = self.report_own(statsd) => {}
        }
    }

    /// What is ours alone, so we need not lead.
    async fn report_own(&self, statsd: &Statsd) {
        loop {
            self.metrics.repeat_limits();
            statsd.send(|batch| self.send_backlog(batch));
            sleep(REPEAT).await;
        }
    }

    fn send_backlog(&self, batch: &mut Batch<'_>) {
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

    /// Returns when it is time to stop, with the leadership given back.
    async fn lead(&self, statsd: &Statsd, shutdown: &CancellationToken) {
        loop {
            let leadership = tokio::select! {
                () = shutdown.cancelled() => return,
                leadership = self.election.lead() => leadership,
            };
            let result = match leadership {
                Ok(leadership) => tokio::select! {
                    () = shutdown.cancelled() => {
                        // Without the store it ends with the session.
                        let released = timeout(RELEASE_LIMIT, leadership.release()).await;
                        if let Ok(Err(error)) = released {
                            trouble(&error);
                        }
                        return;
                    }
                    () = leadership.lost() => Ok(()),
                    result = self.report(statsd) => result,
                },
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                trouble(&error);
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = sleep(RETRY) => {}
                }
            }
        }
    }

    /// Ends only with an error.
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
                tokio::task::spawn_blocking(move || send(&statsd, &Census::take(&counted)));
            if let Err(error) = sending.await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot count the nodes"
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

fn trouble(error: &Error) {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "election for the statistics failed"
    );
}

fn send(statsd: &Statsd, census: &Census) {
    statsd.send(|batch| {
        for (state, count) in census.nodes.iter() {
            batch.gauge(&names::nodes(state), count);
        }
        for (provider, counts) in &census.by_provider {
            for (state, count) in counts.iter() {
                batch.gauge(&names::provider_nodes(provider, state), count);
            }
        }
        for (label, counts) in &census.by_label {
            for (state, count) in counts.iter() {
                batch.gauge(&names::label_nodes(label, state), count);
            }
        }
        for ((provider, pool), count) in &census.addressable {
            batch.gauge(&names::addressable_requests(provider, pool), count);
        }
    });
}
