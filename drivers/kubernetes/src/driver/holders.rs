//! Finds or creates the holder of a node that shares none with others.

use kube::ResourceExt as _;
use nodeyard_config::ClusterLabel;
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Progress};

use super::create::CreatedNode;
use super::namespace::NodeNamespace;
use super::peers::open_to;
use super::{ClusterLink, KubernetesDriver};
use crate::body::metadata;
use crate::buildset::{BUILDSET, PEERS};
use crate::holder::{HolderMetadata, HolderRef, NodeHolder};
use crate::names;

impl KubernetesDriver {
    /// Returns the holder that an earlier attempt created, and deletes surplus ones. Waits while one is being deleted.
    /// A shared namespace is found by its name instead.
    pub(super) async fn find_holder(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
    ) -> Result<Option<NodeHolder>, Error> {
        let holders = self.holders(link);
        let timer = self.options.poll.start();
        loop {
            let mut found = holders
                .list(&self.shared_namespaces(), Some(order.node))
                .await?;
            found.retain(|holder| !holder.shared);
            if !found.iter().any(|holder| holder.deleting) {
                let kept = found.pop();
                for surplus in &found {
                    holders.delete(surplus).await?;
                }
                return Ok(kept);
            }
            timer.tick().await;
        }
    }

    /// Creates the pod of a node among those of others, and the objects that it owns.
    pub(super) async fn create_pod_in_project(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        existing: Option<NodeHolder>,
        progress: &Progress,
    ) -> Result<CreatedNode, Error> {
        let reference = match &existing {
            Some(holder) => holder.reference.clone(),
            None => {
                let name = names::shared_pod(label.name.as_str(), order.node);
                HolderRef::pod(order.pool.as_str(), name)
            }
        };
        let name = reference.name();
        let space = NodeNamespace {
            node: order.node,
            external_id: reference.external_id(),
            namespace: reference.namespace.clone(),
            member: None,
            pod: Some(name.to_owned()),
        };
        let keys = match &label.ssh {
            Some(ssh) => self.host_keys(link, ssh, &space.namespace, name).await?,
            None => None,
        };
        let keys = keys.as_ref();
        let (uid, version) = match existing {
            Some(holder) => (holder.uid, None),
            None => match self
                .create_pod(link, order, label, &space, name, keys)
                .await?
            {
                Some(pod) => (pod.uid(), pod.resource_version()),
                None => (self.existing_pod(link, order, &reference).await?.uid, None),
            },
        };
        progress.set_external_id(reference.external_id());
        if let Some(ssh) = &label.ssh {
            self.expose_pod(link, &space, ssh, keys, uid.as_deref())
                .await?;
        }
        Ok(CreatedNode { space, version })
    }

    /// Creates a namespace with the name that Nodepool would give it, or another if that one is taken.
    pub(super) async fn create_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
    ) -> Result<String, Error> {
        let mut labels = metadata::namespace_labels(label, order);
        if let Some(buildset) = open_to(label, order) {
            labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
            labels.insert(PEERS.to_owned(), "services".into());
        }
        let metadata = HolderMetadata {
            labels,
            annotations: metadata::texts(Some(&label.hardening.namespace_annotations)),
            takes: metadata::takes(label),
        };
        let holders = self.holders(link);
        let pool = order.pool.as_str();
        let system = self.options.owner.system.as_str();
        let names = [
            names::namespace(pool, order.node),
            names::namespace_of_system(pool, order.node, system),
        ];
        for name in &names {
            if holders.create_namespace(name, &metadata).await? {
                return Ok(name.clone());
            }
            match holders.get(&HolderRef::namespace(name.as_str())).await? {
                Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => {
                    if holder.deleting {
                        return Err(Error::retry(format!(
                            "namespace {name} is still being deleted"
                        )));
                    }
                    return Ok(name.clone());
                }
                _ => {}
            }
        }
        Err(Error::new(
            ErrorClass::Failed,
            format!(
                "the names {} for the namespace of node {} are taken; delete one, or rename pool {pool}",
                names.join(" and "),
                order.node
            ),
        ))
    }

    /// Returns the pod that has the name of ours, which must carry our tags.
    async fn existing_pod(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        reference: &HolderRef,
    ) -> Result<NodeHolder, Error> {
        let holder = self.holders(link).get(reference).await?;
        match holder {
            Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => Ok(holder),
            Some(_) => Err(Error::new(
                ErrorClass::Failed,
                format!(
                    "pod {} in {} belongs to someone else; delete it, or give the pool a project of its own",
                    reference.name(),
                    reference.namespace
                ),
            )),
            None => Err(Error::retry(format!(
                "pod {} was deleted during the launch",
                reference.name()
            ))),
        }
    }
}
