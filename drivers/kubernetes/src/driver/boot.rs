//! Waits until the pod of a node runs.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use nodeyard_config::ClusterLabel;
use nodeyard_driver::{Error, ErrorClass, Progress};

use super::{ClusterLink, KubernetesDriver};
use crate::pod_state::{PodState, judge};

/// The longest time between two looks at a pod whose changes the cluster reports.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// How long to wait for the first report of a new pod.
const FIRST_REPORT: Duration = Duration::from_secs(1);
/// The reason of the event by which an autoscaler says that it adds a node for the pod.
const SCALES_UP: &str = "TriggeredScaleUp";

impl KubernetesDriver {
    /// `created` is the resource version of a pod that was just created.
    pub(super) async fn wait_until_running(
        &self,
        link: &ClusterLink,
        label: &ClusterLabel,
        (namespace, name): (&str, &str),
        created: Option<&str>,
        progress: &Progress,
    ) -> Result<Arc<Pod>, Error> {
        let timer = self.options.poll.start();
        let feeds = &link.feeds;
        if let Some(version) = created
            && feeds.reports_pods(namespace)
        {
            feeds
                .pod_changed((namespace, name), version, false, FIRST_REPORT)
                .await;
        }
        // False if a wait for reports was in vain: then the cluster is asked.
        let mut reported = true;
        loop {
            let pod = self.look_at_pod(link, (namespace, name), reported).await?;
            let age = timer.age();
            let (wait, reason) = match judge(&pod) {
                PodState::Running { ready: false } if label.ssh.is_some() => {
                    let reason =
                        "the pod is running, but its SSH port does not answer yet".to_owned();
                    let wait = self.wait_for_start(link, (namespace, name), &reason, age);
                    (wait.await?, reason)
                }
                PodState::Running { .. } => return Ok(pod),
                PodState::Waiting(reason) => {
                    let wait = self.wait_for_start(link, (namespace, name), &reason, age);
                    (wait.await?, reason)
                }
                PodState::Unschedulable(reason) => {
                    let wait = self.wait_for_room(link, (namespace, name), &reason, age);
                    (wait.await?, reason)
                }
                PodState::Failed(error) => {
                    return Err(self.with_events(link, namespace, name, error).await);
                }
            };
            progress.set_stage(reason);
            let version = pod.metadata.resource_version.as_deref().unwrap_or("0");
            let seen = feeds.has_pod(namespace, name);
            reported = feeds
                .pod_changed((namespace, name), version, seen, wait)
                .await;
        }
    }

    /// Fails if the pod has ended or was deleted.
    pub(super) async fn check_pod(
        &self,
        link: &ClusterLink,
        namespace: &str,
        name: &str,
    ) -> Result<(), Error> {
        let pod = self.read_pod(link, namespace, name).await?;
        let pod = pod.ok_or_else(|| deleted(namespace, name))?;
        match judge(&pod) {
            PodState::Failed(error) => Err(self.with_events(link, namespace, name, error).await),
            _ => Ok(()),
        }
    }

    /// Returns how long to wait for a pod that has been placed on a node of the cluster. Fails after the limit.
    async fn wait_for_start(
        &self,
        link: &ClusterLink,
        (namespace, name): (&str, &str),
        reason: &str,
        age: Duration,
    ) -> Result<Duration, Error> {
        let limit = self.options.pod_limit;
        if age > limit {
            let text = format!(
                "pod {name} does not run after {} s: {reason}",
                limit.as_secs()
            );
            let error = Error::new(ErrorClass::Failed, text);
            return Err(self.with_events(link, namespace, name, error).await);
        }
        Ok(if link.feeds.reports_pods(namespace) {
            MAX_WAIT.min(limit.saturating_sub(age).max(self.options.poll.least))
        } else {
            self.options.poll.after(age)
        })
    }

    /// Returns how long to wait for a pod that no node of the cluster has room for. Fails unless an autoscaler is adding
    /// a node, or may still say so.
    async fn wait_for_room(
        &self,
        link: &ClusterLink,
        (namespace, name): (&str, &str),
        reason: &str,
        age: Duration,
    ) -> Result<Duration, Error> {
        let patience = self.options.scheduling_patience;
        if age < patience {
            return Ok(patience.saturating_sub(age).max(self.options.poll.least));
        }
        let events = self.events(link, namespace, Some(name)).await?;
        let mut reasons = events.iter().map(|event| event.reason.as_deref());
        if reasons.any(|reason| reason == Some(SCALES_UP)) {
            return Ok(self.options.poll.most);
        }
        Err(Error::new(
            ErrorClass::Capacity,
            format!("no node of the cluster has room for pod {name}: {reason}"),
        ))
    }

    /// Returns the pod as it was reported. Asks the cluster if it has not reported any, or if a wait for reports was in
    /// vain.
    async fn look_at_pod(
        &self,
        link: &ClusterLink,
        (namespace, name): (&str, &str),
        reported: bool,
    ) -> Result<Arc<Pod>, Error> {
        let feed = link.feeds.pods(namespace);
        let known = feed.and_then(|feed| feed.get(namespace, name));
        match known {
            Some(pod) if reported => Ok(pod),
            None if reported => self
                .read_pod(link, namespace, name)
                .await?
                .ok_or_else(|| deleted(namespace, name)),
            known => {
                let read = match (self.read_pod(link, namespace, name).await, known) {
                    // The launch goes on with what was reported.
                    (Err(error), Some(pod)) if error.class() == ErrorClass::Retry => {
                        return Ok(pod);
                    }
                    (read, _) => read?,
                };
                let version = read.as_ref().and_then(|pod| pod.resource_version());
                link.feeds
                    .confirm_pod(namespace, name, version.as_deref())
                    .await;
                read.ok_or_else(|| deleted(namespace, name))
            }
        }
    }

    async fn read_pod(
        &self,
        link: &ClusterLink,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Pod>>, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod = link.api.get::<Pod>("read a pod", &path).await?;
        Ok(pod.map(Arc::new))
    }
}

fn deleted(namespace: &str, name: &str) -> Error {
    let text = format!(
        "pod {name} in {namespace} was deleted during the launch; see the events of the cluster"
    );
    Error::new(ErrorClass::Failed, text)
}
