//! Creates a node: its holder, the objects in it, and its pod.

use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, NodeKind};
use nodeyard_driver::{CreateOrder, Error, Instance, Progress};

use super::namespace::NodeNamespace;
use super::share::shared_by;
use super::{ClusterLink, KubernetesDriver};
use crate::holder::{HolderKind, HolderRef, NodeHolder};

/// The objects of a node exist; its pod may not run yet.
pub(super) struct CreatedNode {
    pub(super) space: NodeNamespace,
    /// The resource version of the pod. None if there is none or it existed before.
    pub(super) version: Option<String>,
}

impl KubernetesDriver {
    pub(super) async fn create_node(
        &self,
        order: &CreateOrder,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let label = self.options.label(&order.pool, &order.label)?;
        let link = self.link().await?;
        if is_pod(label) {
            // Reports an invalid label before anything is created.
            self.pod_plan(order, label, label.name.as_str()).body()?;
        }
        let CreatedNode { space, version } =
            self.create_objects(&link, order, label, progress).await?;
        let pod = match &space.pod {
            Some(name) => {
                let running = self.wait_until_running(
                    &link,
                    label,
                    (space.namespace.as_str(), name.as_str()),
                    version.as_deref(),
                    progress,
                );
                let pod = running.await?;
                progress.set_stage("the pod is running");
                Some(pod)
            }
            None => None,
        };
        self.build_instance(&link, order, label, &space, pod.as_deref())
            .await
    }

    async fn create_objects(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        progress: &Progress,
    ) -> Result<CreatedNode, Error> {
        let existing = match order.first_attempt {
            true => None,
            false => self.find_holder(link, order).await?,
        };
        let space = if let Some(buildset) = shared_by(label, order) {
            // Also if the node has joined already: a deletion may have begun that has not seen it.
            self.join_shared_namespace(link, order, label, &buildset, progress)
                .await?
        } else if self.options.holder == HolderKind::Pod {
            return self
                .create_pod_in_project(link, order, label, existing, progress)
                .await;
        } else {
            self.own_namespace(link, order, label, existing, progress)
                .await?
        };
        let version = self.fill_namespace(link, order, label, &space).await?;
        Ok(CreatedNode { space, version })
    }

    async fn own_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        existing: Option<NodeHolder>,
        progress: &Progress,
    ) -> Result<NodeNamespace, Error> {
        let holder = match existing {
            Some(holder) => holder.reference,
            None => HolderRef::namespace(self.create_namespace(link, order, label).await?),
        };
        progress.set_external_id(holder.external_id());
        Ok(NodeNamespace {
            node: order.node,
            external_id: holder.external_id(),
            namespace: holder.namespace,
            member: None,
            pod: is_pod(label).then(|| label.name.to_string()),
        })
    }

    /// Creates everything in the namespace, and returns the version of the pod if there is one and it is new.
    async fn fill_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        space: &NodeNamespace,
    ) -> Result<Option<String>, Error> {
        let keys = match (&label.ssh, &space.pod) {
            (Some(ssh), Some(pod)) => self.host_keys(link, ssh, &space.namespace, pod).await?,
            _ => None,
        };
        let keys = keys.as_ref();
        self.set_up_namespace(link, order, label, space, keys)
            .await?;
        let account = self.create_account(link, order, label, space);
        let Some(name) = &space.pod else {
            account.await?;
            return Ok(None);
        };
        let runs_as = label.hardening.service_account_name.as_deref();
        let pod = self.create_pod(link, order, label, space, name, keys);
        let pod = if runs_as == Some(&*space.account()) {
            // The pod needs the account.
            account.await?;
            pod.await?
        } else {
            let (pod, ()) = tokio::try_join!(pod, account)?;
            pod
        };
        Ok(pod.and_then(|pod| pod.resource_version()))
    }
}

pub(super) fn is_pod(label: &ClusterLabel) -> bool {
    label.node_kind() == NodeKind::Pod
}
