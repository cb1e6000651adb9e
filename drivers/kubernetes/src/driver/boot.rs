//! The wait until what was made can be used.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use nodeyard_config::ClusterLabel;
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, State, Step};
use nodeyard_model::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::create::Create;
use super::quarters::{Member, Quarters};
use super::{Awaited, KubernetesDriver, Link, wait};
use crate::verdict::{Verdict, judge};

/// A safety net: what happens is told by the cluster.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// An autoscaler makes room for the pod.
const SCALES_UP: &str = "TriggeredScaleUp";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Booting {
    pub(super) node: NodeId,
    pub(super) namespace: String,
    /// None for a node that is the namespace itself.
    pub(super) pod: Option<String>,
    /// Where the namespace is shared.
    #[serde(default)]
    pub(super) member: Option<Member>,
    pub(super) since: Timestamp,
    /// Since when the pod runs.
    pub(super) running: Option<Timestamp>,
}

impl Booting {
    pub(super) fn quarters(&self) -> Quarters<'_> {
        Quarters {
            node: self.node,
            namespace: &self.namespace,
            member: self.member.as_ref(),
        }
    }

    /// Of a pod that was made just now, the cluster will tell what becomes of it.
    pub(super) fn first_look(&self, link: &Link, version: Option<&str>) -> Step<Instance> {
        match (self.pod.as_deref(), version) {
            (Some(pod), Some(version)) if link.feeds.tell_of_pods(&self.namespace) => {
                let awaited = Awaited {
                    namespace: &self.namespace,
                    pod: Some(pod),
                    version,
                    seen: false,
                };
                wait(&awaited, Duration::from_secs(1))
            }
            _ => Step::go_on(),
        }
    }
}

/// A pod that does not run yet.
struct Pending<'a> {
    namespace: &'a str,
    name: &'a str,
    pod: &'a Pod,
    /// Whether it is the cluster that told about it.
    seen: bool,
    age: Duration,
}

impl Pending<'_> {
    fn wait(&self, at_most: Duration) -> Step<Instance> {
        let version = self.pod.metadata.resource_version.as_deref();
        let awaited = Awaited {
            namespace: self.namespace,
            pod: Some(self.name),
            version: version.unwrap_or("0"),
            seen: self.seen,
        };
        wait(&awaited, at_most)
    }
}

impl KubernetesDriver {
    /// Looks at the pod until it can be used.
    pub(super) async fn follow(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        mut place: Booting,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let Some(name) = place.pod.clone() else {
            return self.hand_out(link, order, label, &place, None, now).await;
        };
        let (pod, seen) = self.look(link, &place.namespace, &name).await?;
        let Some(pod) = pod else {
            let text = format!(
                "pod {name} in {} was deleted during the launch; the events of the cluster may tell why",
                place.namespace
            );
            return Err(Error::new(ErrorClass::Failed, text));
        };
        let pending = Pending {
            namespace: &place.namespace,
            name: &name,
            pod: &pod,
            seen,
            age: now.since(place.since),
        };
        match judge(&pod) {
            Verdict::Running { ready } if ready || label.ssh.is_none() => {
                if place.running.is_none() {
                    place.running = Some(now);
                    state.write(&Create::Booting {
                        place: place.clone(),
                    })?;
                }
                self.hand_out(link, order, label, &place, Some(&pod), now)
                    .await
            }
            Verdict::Running { .. } => {
                let text = "the pod runs, and nobody answers at its SSH port yet".to_owned();
                self.await_start(link, order.node, &pending, text).await
            }
            Verdict::Waiting(text) => self.await_start(link, order.node, &pending, text).await,
            Verdict::Unschedulable(text) => self.await_room(link, order.node, &pending, text).await,
            Verdict::Failed(error) => {
                Err(self.with_events(link, &place.namespace, &name, error).await)
            }
        }
    }

    async fn await_start(
        &self,
        link: &Link,
        node: NodeId,
        pending: &Pending<'_>,
        text: String,
    ) -> Result<Step<Instance>, Error> {
        let &Pending {
            namespace,
            name,
            age,
            ..
        } = pending;
        let limit = self.options.pod_limit;
        if age > limit {
            let text = format!(
                "pod {name} does not run after {} s: {text}",
                limit.as_secs()
            );
            let error = Error::new(ErrorClass::Failed, text);
            return Err(self.with_events(link, namespace, name, error).await);
        }
        self.note_progress(node, Some(text));
        let at_most = if link.feeds.tell_of_pods(namespace) {
            LONGEST_WAIT.min(limit.saturating_sub(age).max(self.options.poll.least))
        } else {
            self.options.poll.after(age)
        };
        Ok(pending.wait(at_most))
    }

    async fn await_room(
        &self,
        link: &Link,
        node: NodeId,
        pending: &Pending<'_>,
        text: String,
    ) -> Result<Step<Instance>, Error> {
        let &Pending {
            namespace,
            name,
            age,
            ..
        } = pending;
        let patience = self.options.scheduling_patience;
        if age >= patience && !self.scales_up(link, namespace, name).await? {
            return Err(Error::new(
                ErrorClass::Capacity,
                format!("no node of the cluster takes pod {name}: {text}"),
            ));
        }
        self.note_progress(node, Some(text));
        let at_most = if age >= patience {
            self.options.poll.most
        } else {
            patience.saturating_sub(age).max(self.options.poll.least)
        };
        Ok(pending.wait(at_most))
    }

    /// The pod, and whether it is the cluster that told about it.
    async fn look(
        &self,
        link: &Link,
        namespace: &str,
        name: &str,
    ) -> Result<(Option<Arc<Pod>>, bool), Error> {
        let feed = link.feeds.pods(namespace);
        if let Some(pod) = feed.and_then(|feed| feed.get(namespace, name)) {
            return Ok((Some(pod), true));
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod = link.api.get::<Pod>("look at a pod", &path).await?;
        Ok((pod.map(Arc::new), false))
    }

    async fn scales_up(&self, link: &Link, namespace: &str, pod: &str) -> Result<bool, Error> {
        let events = self.events(link, namespace, Some(pod)).await?;
        Ok(events
            .iter()
            .any(|event| event.reason.as_deref() == Some(SCALES_UP)))
    }
}
