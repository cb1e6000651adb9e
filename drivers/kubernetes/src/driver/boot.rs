//! Waits until the pod of a node runs.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use nodeyard_config::ClusterLabel;
use nodeyard_driver::{Error, ErrorClass, PollTimer, Progress};

use super::{ClusterLink, KubernetesDriver};
use crate::pod_state::{PodState, image_pull, judge};

/// The longest time between two looks at a pod whose changes the cluster reports.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// How long to wait for the first report of a new pod.
const FIRST_REPORT: Duration = Duration::from_secs(1);
/// The reasons of events by which the Cluster Autoscaler and Karpenter say that they add a node for the pod.
const SCALES_UP: &[&str] = &["TriggeredScaleUp", "Nominated"];
/// How long an autoscaler may take for that.
const SCALE_UP_LIMIT: Duration = Duration::from_secs(300);

/// The wait for one pod.
struct PodWait<'a> {
    driver: &'a KubernetesDriver,
    link: &'a ClusterLink,
    namespace: &'a str,
    name: &'a str,
    timer: PollTimer,
    /// When the pod last had no room, or its image could not be pulled: how long it takes to start is counted from there.
    hindered: Duration,
    /// Since when its image cannot be pulled.
    pull_fails_since: Option<Duration>,
}

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
        let feeds = &link.feeds;
        let mut wait = PodWait {
            driver: self,
            link,
            namespace,
            name,
            timer: self.options.poll.start(),
            hindered: Duration::ZERO,
            pull_fails_since: None,
        };
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
            let (pause, reason) = match judge(&pod) {
                PodState::Running { ready: false } if label.ssh.is_some() => {
                    let reason = "the pod is running, but its SSH port does not answer yet";
                    (wait.for_start(reason).await?, reason.to_owned())
                }
                PodState::Running { .. } => return Ok(pod),
                PodState::Waiting(reason) => (wait.for_start(&reason).await?, reason),
                PodState::PullFails(reason) => (wait.for_image(&pod, &reason).await?, reason),
                PodState::Unschedulable {
                    message,
                    fits_no_node,
                } => (wait.for_room(&pod, &message, fits_no_node).await?, message),
                PodState::Failed(error) => {
                    return Err(self.with_events(link, namespace, name, error).await);
                }
            };
            progress.set_stage(reason);
            let version = pod.metadata.resource_version.as_deref().unwrap_or("0");
            let seen = feeds.has_pod(namespace, name);
            reported = feeds
                .pod_changed((namespace, name), version, seen, pause)
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

/// Each returns how long to wait for the next report, and fails when the wait has been long enough.
impl PodWait<'_> {
    /// The pod has been placed on a node of the cluster.
    async fn for_start(&self, reason: &str) -> Result<Duration, Error> {
        let limit = self.driver.options.pod_limit;
        let waited = self.timer.age().saturating_sub(self.hindered);
        if waited > limit {
            let text = format!(
                "pod {} does not run after {} s: {reason}",
                self.name,
                limit.as_secs()
            );
            return Err(self.failed(ErrorClass::Failed, text).await);
        }
        Ok(self.pause(limit.saturating_sub(waited)))
    }

    /// No node of the cluster has room for the pod. That fails like a quota, so that the request waits, unless the pod
    /// would fit no node at all. An autoscaler gets more time if it is adding a node.
    async fn for_room(
        &mut self,
        pod: &Pod,
        message: &str,
        fits_no_node: bool,
    ) -> Result<Duration, Error> {
        let limit = self.driver.options.scheduling_timeout;
        let age = self.timer.age();
        self.hindered = age;
        if age < limit {
            return Ok(self.pause(limit.saturating_sub(age)));
        }
        let events = self.events(pod).await?;
        let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
        if age < limit.max(SCALE_UP_LIMIT) && reasons.any(|reason| SCALES_UP.contains(&reason)) {
            return Ok(self.driver.options.poll.most);
        }
        let name = self.name;
        let message = message.trim_end_matches('.');
        Err(if fits_no_node {
            let text = format!(
                "no node of the cluster can run pod {name}: {message}; change the resources or the `node-selector` of \
                 the label, or add such nodes"
            );
            Error::new(ErrorClass::Capacity, text)
        } else {
            let text = format!("no node of the cluster has room for pod {name}: {message}");
            Error::new(ErrorClass::Quota, text)
        })
    }

    /// An image of the pod cannot be pulled. The kubelet tries again, which is of no use if the registry refuses the image.
    async fn for_image(&mut self, pod: &Pod, reason: &str) -> Result<Duration, Error> {
        let limit = self.driver.options.image_pull_timeout;
        let age = self.timer.age();
        self.hindered = age;
        let waited = age.saturating_sub(*self.pull_fails_since.get_or_insert(age));
        // Without events only the time counts.
        let events = self.events(pod).await.unwrap_or_default();
        let name = self.name;
        if let Some(refusal) = image_pull::refusal(&events) {
            return Err(Error::permanent(format!(
                "pod {name} cannot run: {refusal}; change the `image` of the label, or its `image-pull-secrets`"
            )));
        }
        if waited >= limit {
            let text = format!("pod {name} cannot run: {reason}");
            return Err(self.failed(ErrorClass::Failed, text).await);
        }
        let rest = limit.saturating_sub(waited);
        // The status of the pod may be the same after another pull.
        Ok(self.pause(rest).min(self.driver.options.poll.most))
    }

    fn pause(&self, rest: Duration) -> Duration {
        let poll = self.driver.options.poll;
        let most = if self.link.feeds.reports_pods(self.namespace) {
            MAX_WAIT
        } else {
            poll.after(self.timer.age())
        };
        most.min(rest.max(poll.least))
    }

    async fn events(&self, pod: &Pod) -> Result<Vec<Event>, Error> {
        self.driver
            .events_of_pod(self.link, self.namespace, pod)
            .await
    }

    async fn failed(&self, class: ErrorClass, text: String) -> Error {
        let error = Error::new(class, text);
        self.driver
            .with_events(self.link, self.namespace, self.name, error)
            .await
    }
}

fn deleted(namespace: &str, name: &str) -> Error {
    let text = format!(
        "pod {name} in {namespace} was deleted during the launch; see the events of the cluster"
    );
    Error::new(ErrorClass::Failed, text)
}
