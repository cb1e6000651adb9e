//! Creates the pod of a node.

use k8s_openapi::api::core::v1::Pod;
use nodeyard_config::{ClusterLabel, Expose, SshAccess};
use nodeyard_driver::{CreateOrder, Error};

use super::namespace::{NodeNamespace, set_owning_pod};
use super::setup::ssh_objects;
use super::{ClusterLink, KubernetesDriver};
use crate::api::CreateOutcome;
use crate::body::metadata;
use crate::body::pod::PodPlan;
use crate::body::ssh::{HostKeys, SshPlan};
use crate::forward::FORWARD;
use crate::holder::{HolderKind, HolderMetadata};

impl KubernetesDriver {
    pub(super) fn pod_plan<'a>(
        &self,
        order: &CreateOrder,
        label: &'a ClusterLabel,
        name: &'a str,
    ) -> PodPlan<'a> {
        let mut plan = PodPlan {
            name,
            label,
            holder: self.options.holder,
            labels: metadata::labels(label, order),
            annotations: serde_json::Map::new(),
            host_keys: None,
        };
        if self.options.holder == HolderKind::Pod {
            let metadata = HolderMetadata {
                labels: serde_json::Map::new(),
                annotations: serde_json::Map::new(),
                takes: metadata::takes(label),
            };
            plan.annotations = metadata.annotations();
        }
        plan
    }

    /// Returns None if the pod exists already.
    pub(super) async fn create_pod(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        space: &NodeNamespace,
        name: &str,
        host_keys: Option<&HostKeys>,
    ) -> Result<Option<Pod>, Error> {
        let mut plan = self.pod_plan(order, label, name);
        plan.host_keys = host_keys;
        if let Some(ssh) = label
            .ssh
            .as_ref()
            .filter(|ssh| ssh.expose == Expose::Forward)
        {
            self.restore_tunnels(link).await?;
            let pod = (space.namespace.clone(), name.to_owned());
            let route = self.tunnels.open(ssh, order.node, pod).await?;
            let text = serde_json::to_string(&route).unwrap_or_default();
            plan.annotations.insert(FORWARD.to_owned(), text.into());
        }
        let mut body = plan.body()?;
        space.own(&mut body);
        let path = format!("/api/v1/namespaces/{}/pods", space.namespace);
        let made = link.api.create::<Pod>("create a pod", &path, &body).await?;
        Ok(match made {
            CreateOutcome::New(pod) => Some(pod),
            CreateOutcome::Exists => None,
        })
    }

    /// Creates the objects that a pod among others needs for SSH. The pod owns them, so it must exist.
    pub(super) async fn expose_pod(
        &self,
        link: &ClusterLink,
        space: &NodeNamespace,
        ssh: &SshAccess,
        host_keys: Option<&HostKeys>,
        uid: Option<&str>,
    ) -> Result<(), Error> {
        let Some(pod) = &space.pod else {
            return Ok(());
        };
        let plan = SshPlan {
            pod,
            node: space.node.to_string(),
            ssh,
        };
        for (what, path, mut body) in ssh_objects(&plan, &space.namespace, host_keys) {
            set_owning_pod(&mut body, pod, uid);
            link.api.ensure(what, &path, &body).await?;
        }
        Ok(())
    }
}
