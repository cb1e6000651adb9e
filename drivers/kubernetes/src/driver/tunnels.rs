//! Keeps tunnels open: reopens those of an earlier process, and closes those of deleted pods.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use nodeyard_driver::Error;
use tokio::time::sleep;
use tracing::warn;

use super::{ClusterLink, KubernetesDriver};
use crate::api::escape;
use crate::forward::TunnelRoute;
use crate::holder::{HolderKind, selector};

/// The label of a pod with the id of its node.
const NODE_LABEL: &str = "nodepool_node_id";
/// Pause while a feed is missing.
const STARTING: Duration = Duration::from_millis(100);
/// Pause otherwise; a tunnel that failed to open is tried again after that.
const QUIET: Duration = Duration::from_secs(5);
/// Pause between two lists of the pods in projects, which have no feed.
const LISTING: Duration = Duration::from_secs(60);

impl KubernetesDriver {
    pub(super) async fn maintain_tunnels(&self) -> Result<(), Error> {
        loop {
            let link = self.link().await?;
            let pause = match self.options.holder {
                HolderKind::Project => self.open_tunnels_into_projects(&link).await?,
                HolderKind::Namespace | HolderKind::Pod => self.update_tunnels(&link).await,
            };
            sleep(pause).await;
        }
    }

    /// Opens and closes tunnels as the feeds say. Returns the pause before the next time.
    async fn update_tunnels(&self, link: &ClusterLink) -> Duration {
        let mut live = true;
        let mut there = HashSet::new();
        for feed in link.feeds.pods.values() {
            live &= feed.is_live();
            for pod in feed.all() {
                if TunnelRoute::of(&pod).is_some() {
                    there.insert((pod.namespace().unwrap_or_default(), pod.name_any()));
                }
                self.open_tunnel(&pod).await;
            }
        }
        if live {
            self.tunnels.close_unless(|pod| there.contains(pod));
        }
        if live { QUIET } else { STARTING }
    }

    /// Opens the tunnels of an earlier process, once, so that no new one gets a port of theirs.
    pub(super) async fn restore_tunnels(&self, link: &ClusterLink) -> Result<(), Error> {
        let restored = self.tunnels.restored.get_or_try_init(async || {
            let paths = match self.options.holder {
                HolderKind::Project => {
                    return self.open_tunnels_into_projects(link).await.map(drop);
                }
                HolderKind::Namespace => vec!["/api/v1/pods".to_owned()],
                HolderKind::Pod => (self.shared_namespaces().iter())
                    .map(|namespace| format!("/api/v1/namespaces/{namespace}/pods"))
                    .collect(),
            };
            let query = format!("labelSelector={}", escape(&selector(&self.options.owner)));
            for path in paths {
                for pod in link.api.list::<Pod>("list pods", &path, &query).await? {
                    self.open_tunnel(&pod).await;
                }
            }
            Ok(())
        });
        restored.await?;
        Ok(())
    }

    /// Opens tunnels only: a project that is not listed may have just been created. They are closed with their nodes.
    /// Returns the pause before the next time.
    async fn open_tunnels_into_projects(&self, link: &ClusterLink) -> Result<Duration, Error> {
        let owner = &self.options.owner;
        let query = format!("labelSelector={}", escape(&selector(owner)));
        let mut complete = true;
        for project in self.holders(link).list(&[], None).await? {
            let namespace = &project.reference.namespace;
            if project.deleting
                || !owner.owns(&project.tags)
                || self.tunnels.has_tunnel_into(namespace)
            {
                continue;
            }
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            for pod in link.api.list::<Pod>("list pods", &path, &query).await? {
                complete &= self.open_tunnel(&pod).await;
            }
        }
        Ok(if complete { LISTING } else { QUIET })
    }

    /// Returns false if the pod has a tunnel that failed to open.
    async fn open_tunnel(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let node = labels.and_then(|labels| labels.get(NODE_LABEL)?.parse().ok());
        let (Some(node), Some(route)) = (node, TunnelRoute::of(pod)) else {
            return true;
        };
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        match self.tunnels.reopen(node, key.clone(), route).await {
            Ok(()) => {
                self.tunnels.note_listed(&key);
                true
            }
            Err(error) => {
                warn!(
                    %node,
                    error = &error as &dyn std::error::Error,
                    "failed to open tunnel to pod; retrying"
                );
                false
            }
        }
    }
}
