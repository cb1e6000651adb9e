//! A namespace that the nodes of a buildset share: joining and leaving it.
//!
//! Each node is a *member*: a config map with the node's tags that owns all objects of the node. The deletion of the
//! last member deletes the namespace. Another node may join at that moment, in this process or another. So a node that joins
//! creates its member first and then changes an annotation of the namespace; and a namespace is read first, then its
//! members, and it is deleted only if its version is still the same. Of the two, one always notices the other.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, Share};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Progress};
use nodeyard_model::{NodeId, Timestamp};
use serde_json::{Value, json};

use super::create::is_pod;
use super::namespace::{NamespaceMember, NodeNamespace};
use super::{ClusterLink, KubernetesDriver};
use crate::api::{CreateOutcome, DeleteOptions, escape};
use crate::body::metadata;
use crate::buildset::{BUILDSET, Buildset, SHARED};
use crate::holder::{HolderMetadata, HolderRef, NodeHolder, Object};
use crate::names;

/// The annotation of a namespace that every node changes when it joins.
const TOUCHED: &str = "nodeyard/touched-by";

/// Returns the buildset whose namespace a node of the label joins, if any.
pub(super) fn shared_by(label: &ClusterLabel, order: &CreateOrder) -> Option<Buildset> {
    match label.share {
        Share::Buildset => Buildset::of(&order.request),
        Share::None => None,
    }
}

impl KubernetesDriver {
    pub(super) async fn join_shared_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
        progress: &Progress,
    ) -> Result<NodeNamespace, Error> {
        let timer = self.options.poll.start();
        loop {
            if let Some(namespace) = self.shared_namespace(link, order, label, buildset).await? {
                let member = self
                    .create_member(link, order, label, buildset, &namespace)
                    .await?;
                let reference = HolderRef::member(namespace.as_str(), member.name.as_str());
                progress.set_external_id(reference.external_id());
                // If the namespace is being deleted, so is the member.
                if self.touch(link, &namespace, order.node).await? {
                    let pod = || names::shared_pod(label.name.as_str(), order.node);
                    return Ok(NodeNamespace {
                        node: order.node,
                        external_id: reference.external_id(),
                        namespace,
                        member: Some(member),
                        pod: is_pod(label).then(pod),
                    });
                }
            }
            timer.tick().await;
        }
    }

    /// Returns the namespace of the buildset, and creates it if there is none. None while an earlier one is being deleted.
    async fn shared_namespace(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
    ) -> Result<Option<String>, Error> {
        let mut labels = metadata::namespace_labels(label, order);
        labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
        labels.insert(SHARED.to_owned(), "buildset".into());
        let metadata = HolderMetadata {
            labels,
            annotations: metadata::texts(Some(&label.hardening.namespace_annotations)),
            // Its members count, not the namespace.
            takes: nodeyard_model::Resources::default(),
        };
        let holders = self.holders(link);
        let system = &self.options.owner.system;
        let names = [
            names::shared_namespace(buildset.as_str()),
            names::shared_namespace_of_system(buildset.as_str(), system.as_str()),
        ];
        for name in &names {
            if holders.create_namespace(name, &metadata).await? {
                return Ok(Some(name.clone()));
            }
            let found = holders.object(&HolderRef::namespace(name.as_str())).await?;
            let Some(found) = found else { return Ok(None) };
            let of_buildset = found.label(BUILDSET) == Some(buildset.as_str());
            let holder = found.into_holder(self.options.holder, &self.options.owner);
            if let Some(holder) = holder
                && holder.shared
                && of_buildset
                && holder.tags.system.as_ref() == Some(system)
            {
                return Ok((!holder.deleting).then(|| name.clone()));
            }
        }
        Err(Error::new(
            ErrorClass::Failed,
            format!(
                "the names {} for the namespace of buildset {} are taken; delete one",
                names.join(" and "),
                buildset.as_str()
            ),
        ))
    }

    async fn create_member(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
        namespace: &str,
    ) -> Result<NamespaceMember, Error> {
        let name = names::member(order.node);
        let mut labels = metadata::labels(label, order);
        labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
        let metadata = HolderMetadata {
            labels,
            annotations: serde_json::Map::new(),
            takes: metadata::takes(label),
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": metadata.labels,
                "annotations": metadata.annotations(),
            },
        });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let made = link
            .api
            .create::<ConfigMap>("create a member", &path, &body);
        let uid = match made.await? {
            CreateOutcome::New(made) => made.uid(),
            CreateOutcome::Exists => {
                let reference = HolderRef::member(namespace, name.as_str());
                let holder = self.holders(link).get(&reference).await?;
                match holder {
                    Some(holder) if holder.deleting => None,
                    Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => {
                        holder.uid
                    }
                    Some(_) => {
                        return Err(Error::new(
                            ErrorClass::Failed,
                            format!("{name} in {namespace} belongs to someone else; delete it"),
                        ));
                    }
                    None => None,
                }
            }
        };
        let uid =
            uid.ok_or_else(|| Error::retry(format!("{name} in {namespace} is being deleted")))?;
        Ok(NamespaceMember { name, uid })
    }

    /// Changes the namespace, so that no deletion succeeds that has not seen the new member. Returns false if it is being
    /// deleted already.
    async fn touch(
        &self,
        link: &ClusterLink,
        namespace: &str,
        node: NodeId,
    ) -> Result<bool, Error> {
        let now = Timestamp::from(SystemTime::now());
        let path = format!("/api/v1/namespaces/{namespace}");
        let text = format!("{node} {}", now.as_secs());
        let change = json!({"metadata": {"annotations": {TOUCHED: text}}});
        let changed = link
            .api
            .change::<Value>("join a namespace", &path, &change)
            .await?;
        let deleting = "/metadata/deletionTimestamp";
        Ok(changed.is_some_and(|changed| changed.pointer(deleting).is_none()))
    }

    /// Deletes a shared namespace without members. Returns it if it is being deleted.
    pub(super) async fn delete_if_empty(
        &self,
        link: &ClusterLink,
        namespace: &str,
    ) -> Result<Option<HolderRef>, Error> {
        let space = HolderRef::namespace(namespace);
        let holders = self.holders(link);
        let Some(holder) = holders.get(&space).await? else {
            return Ok(None);
        };
        let ours = holder.tags.system.as_ref() == Some(&self.options.owner.system);
        if !ours || !holder.shared {
            return Ok(None);
        }
        let reference = HolderRef {
            uid: holder.uid.clone(),
            ..space
        };
        if holder.deleting {
            return Ok(Some(reference));
        }
        if self.has_members(link, namespace).await? {
            return Ok(None);
        }
        self.delete_shared_namespace(link, &holder).await?;
        Ok(Some(reference))
    }

    async fn has_members(&self, link: &ClusterLink, namespace: &str) -> Result<bool, Error> {
        let system = names::label_value(self.options.owner.system.as_str());
        let selector = format!("nodeyard_system_id={system},{BUILDSET}");
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let query = format!("labelSelector={}", escape(&selector));
        let members = link
            .api
            .list::<Object>("list members", &path, &query)
            .await?;
        Ok(!members.is_empty())
    }

    async fn delete_shared_namespace(
        &self,
        link: &ClusterLink,
        holder: &NodeHolder,
    ) -> Result<(), Error> {
        const GRACE: Option<u32> = Some(1);
        let path = format!("/api/v1/namespaces/{}", holder.reference.namespace);
        let removal = DeleteOptions {
            uid: holder.uid.as_deref(),
            version: holder.version.as_deref(),
            ..DeleteOptions::default()
        };
        link.api
            .delete("delete a shared namespace", &path, &removal)
            .await?;
        // Only now can no pod of a new member be among them.
        let pods = format!("{path}/pods");
        let at_once = DeleteOptions {
            grace: GRACE,
            ..DeleteOptions::default()
        };
        link.api.delete("delete pods", &pods, &at_once).await
    }
}
