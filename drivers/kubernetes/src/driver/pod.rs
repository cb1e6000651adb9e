//! The pod of a node: what it is made of, and what it needs beside it.

use k8s_openapi::api::core::v1::Pod;
use nodeyard_config::{ClusterLabel, Expose};
use nodeyard_driver::{CreateOrder, Error};

use super::furnish::{Furniture, ssh_objects};
use super::quarters::{Quarters, owned_by_pod};
use super::{KubernetesDriver, Link};
use crate::api::Made;
use crate::body::marks;
use crate::body::pod::PodPlan;
use crate::body::ssh::SshPlan;
use crate::forward::FORWARD;
use crate::holder::{HolderKind, Marks, Place};

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
            labels: marks::labels(label, order),
            annotations: serde_json::Map::new(),
            host_keys: None,
        };
        if self.options.holder == HolderKind::Pod {
            let marks = Marks {
                labels: serde_json::Map::new(),
                annotations: serde_json::Map::new(),
                takes: marks::takes(label),
            };
            plan.annotations = marks.annotations();
        }
        plan
    }

    /// None if it was there already.
    pub(super) async fn make_pod(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        quarters: &Quarters<'_>,
        furniture: &Furniture<'_>,
    ) -> Result<Option<Pod>, Error> {
        let name = furniture.pod.unwrap_or_default();
        let mut plan = self.pod_plan(order, label, name);
        plan.host_keys = furniture.host_keys;
        if let Some(ssh) = label
            .ssh
            .as_ref()
            .filter(|ssh| ssh.expose == Expose::Forward)
        {
            let pod = (quarters.namespace.to_owned(), name.to_owned());
            let route = self.tunnels.open(ssh, order.node, pod).await?;
            let text = serde_json::to_string(&route).unwrap_or_default();
            plan.annotations.insert(FORWARD.to_owned(), text.into());
        }
        let mut body = plan.body()?;
        quarters.own(&mut body);
        let path = format!("/api/v1/namespaces/{}/pods", quarters.namespace);
        let made = link.api.create::<Pod>("make a pod", &path, &body).await?;
        Ok(match made {
            Made::New(pod) => Some(pod),
            Made::Exists => None,
        })
    }

    /// What a pod among others needs beside it. It goes with the pod, so the pod has to be there first.
    pub(super) async fn expose_pod(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        place: &Place,
        uid: Option<&str>,
    ) -> Result<(), Error> {
        let (Some(ssh), Some(pod)) = (&label.ssh, &place.pod) else {
            return Ok(());
        };
        let keys = self.host_keys(link, ssh, &place.namespace, pod).await?;
        let plan = SshPlan {
            pod,
            node: order.node.to_string(),
            ssh,
        };
        for (what, path, mut body) in ssh_objects(&plan, &place.namespace, keys.as_ref()) {
            owned_by_pod(&mut body, pod, uid);
            link.api.ensure(what, &path, &body).await?;
        }
        Ok(())
    }
}
