//! Tunnels that an earlier process had, or that lead nowhere any more.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use nodeyard_driver::Error;
use tracing::warn;

use super::{KubernetesDriver, Link};
use crate::api::escape;
use crate::forward::Route;
use crate::holder::selector;

/// Which node a pod is.
const NODE_LABEL: &str = "nodepool_node_id";
/// As long as something is missing.
const STARTING: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_secs(5);
/// Nobody tells what becomes of pods in projects, so each project is asked.
const ASKING: Duration = Duration::from_secs(60);

impl KubernetesDriver {
    /// From what the cluster tells by itself. Says when to look again.
    pub(super) async fn attend_tunnels(&self, link: &Link) -> Duration {
        let mut complete = true;
        let mut there = HashSet::new();
        for feed in link.feeds.pods.values() {
            complete &= feed.is_live();
            for pod in feed.all() {
                if Route::of(&pod).is_some() {
                    there.insert((pod.namespace().unwrap_or_default(), pod.name_any()));
                }
                complete &= self.open_tunnel(&pod).await;
            }
        }
        if complete {
            self.tunnels.close_without(|pod| there.contains(pod));
        }
        if complete { QUIET } else { STARTING }
    }

    /// They are closed with their nodes: a project that is in no list may have been made a moment ago.
    pub(super) async fn open_tunnels_into_projects(&self, link: &Link) -> Result<Duration, Error> {
        let owner = &self.options.owner;
        let query = format!("labelSelector={}", escape(&selector(owner)));
        let mut complete = true;
        for project in self.holders(link).list(&[], None).await? {
            let namespace = &project.place.namespace;
            if project.leaving || !owner.owns(&project.tags) || self.tunnels.lead_into(namespace) {
                continue;
            }
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            for pod in link
                .api
                .list::<Pod>("look for tunnels", &path, &query)
                .await?
            {
                complete &= self.open_tunnel(&pod).await;
            }
        }
        Ok(if complete { ASKING } else { STARTING })
    }

    /// False if a pod has one that cannot be opened.
    async fn open_tunnel(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let node = labels.and_then(|labels| labels.get(NODE_LABEL)?.parse().ok());
        let (Some(node), Some(route)) = (node, Route::of(pod)) else {
            return true;
        };
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        match self.tunnels.reopen(node, key, route).await {
            Ok(()) => true,
            Err(error) => {
                warn!(
                    %node,
                    error = &error as &dyn std::error::Error,
                    "a tunnel to a pod cannot be opened; trying again"
                );
                false
            }
        }
    }
}
