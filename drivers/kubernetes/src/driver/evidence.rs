//! Evidence of a failed launch: events of the cluster, and the output of containers.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::LogParams;
use nodeyard_driver::{Error, ExternalId};
use tokio::time::timeout;

use super::{ClusterLink, KubernetesDriver};
use crate::api::escape;
use crate::holder::selector;
use crate::pod_state::{PodState, judge};

/// Lines of a container's output.
const LINES: i64 = 100;
/// Newest events.
const EVENTS: usize = 20;

impl KubernetesDriver {
    /// Lists the events of a pod, or all of a namespace, the newest last.
    async fn events(
        &self,
        link: &ClusterLink,
        namespace: &str,
        pod: Option<&str>,
    ) -> Result<Vec<Event>, Error> {
        let selector = pod.map(|pod| format!("involvedObject.kind=Pod,involvedObject.name={pod}"));
        self.selected_events(link, namespace, selector).await
    }

    /// Lists the events of this very pod, without those of an earlier one of the same name.
    pub(super) async fn events_of_pod(
        &self,
        link: &ClusterLink,
        namespace: &str,
        pod: &Pod,
    ) -> Result<Vec<Event>, Error> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let selector = format!("involvedObject.uid={uid}");
        self.selected_events(link, namespace, Some(selector)).await
    }

    async fn selected_events(
        &self,
        link: &ClusterLink,
        namespace: &str,
        selector: Option<String>,
    ) -> Result<Vec<Event>, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let query = selector.map(|selector| format!("fieldSelector={}", escape(&selector)));
        let query = query.unwrap_or_default();
        let mut events = link.api.list::<Event>("list events", &path, &query).await?;
        events.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        Ok(events)
    }

    /// Adds the warnings of the cluster to an error, if they can be read.
    pub(super) async fn with_events(
        &self,
        link: &ClusterLink,
        namespace: &str,
        pod: &str,
        error: Error,
    ) -> Error {
        let Ok(events) = self.events(link, namespace, Some(pod)).await else {
            return error;
        };
        let text = error.to_string();
        let mut warnings: Vec<&str> = events
            .iter()
            .filter(|event| event.type_.as_deref() == Some("Warning"))
            .filter_map(|event| event.message.as_deref())
            .filter(|message| !text.contains(message))
            .collect();
        warnings.dedup();
        let first = warnings.len().saturating_sub(3);
        match warnings.get(first..) {
            Some(warnings) if !warnings.is_empty() => {
                Error::new(error.class(), format!("{text}; {}", warnings.join("; ")))
            }
            _ => error,
        }
    }

    pub(super) async fn collect_evidence(&self, id: &ExternalId) -> Result<Option<String>, Error> {
        let link = self.link().await?;
        let Some(reference) = id.as_text().and_then(|text| self.parse_id(&text)) else {
            return Ok(None);
        };
        let namespace = &reference.namespace;
        let member = reference.member.as_deref();
        let node = member.and_then(|member| member.strip_prefix("node-"));
        let query = node.map(|node| {
            let selector = format!("{},nodepool_node_id={node}", selector(&self.options.owner));
            format!("labelSelector={}", escape(&selector))
        });
        let mut text = String::new();
        for event in self
            .events(&link, namespace, reference.pod.as_deref())
            .await?
            .iter()
            .rev()
            .take(EVENTS)
        {
            let reason = event.reason.as_deref().unwrap_or_default();
            let message = event.message.as_deref().unwrap_or_default();
            text.push_str(&format!("{reason}: {message}\n"));
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pods = match &reference.pod {
            Some(pod) => {
                let pod = link
                    .api
                    .get::<Pod>("read a pod", &format!("{path}/{pod}"))
                    .await?;
                pod.into_iter().collect()
            }
            None => {
                let query = query.unwrap_or_default();
                link.api.list::<Pod>("list pods", &path, &query).await?
            }
        };
        for pod in pods {
            let name = pod.name_any();
            match judge(&pod) {
                PodState::Waiting(state)
                | PodState::PullFails(state)
                | PodState::Unschedulable { message: state, .. } => {
                    text.push_str(&format!("pod {name}: {state}\n"));
                }
                PodState::Failed(error) => text.push_str(&format!("{error}\n")),
                PodState::Running { .. } => {}
            }
            let api: kube::Api<Pod> =
                kube::Api::namespaced(link.connection.client.clone(), namespace);
            let wanted = LogParams {
                tail_lines: Some(LINES),
                ..LogParams::default()
            };
            // A container that never ran has no log.
            if let Ok(Ok(log)) = timeout(self.options.call_limit, api.logs(&name, &wanted)).await {
                text.push_str(&log);
            }
        }
        Ok((!text.is_empty()).then_some(text))
    }
}
