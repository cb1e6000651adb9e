//! A namespace that the nodes of a buildset share: coming into it, and leaving it.
//!
//! Each node is a *member*: a small object with the node's tags that owns all that is the node's. Whoever removes the last
//! member removes the namespace. Somebody may come in at that very moment, in this process or another, so a newcomer
//! makes its member first and then touches the namespace, and whoever removes the namespace looks at it first, then at
//! the members, and removes it only if it was not touched since. Of the two, one always notices the other.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, Share};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, State, Step};
use nodeyard_model::{NodeId, Timestamp};
use serde_json::{Value, json};

use super::create::Create;
use super::quarters::Member;
use super::{KubernetesDriver, Link};
use crate::api::{Made, Removal, escape};
use crate::body::marks;
use crate::buildset::{BUILDSET, Buildset, SHARED};
use crate::holder::{Holder, Marks, Object, Place};
use crate::names;

/// Written by every newcomer.
const TOUCHED: &str = "nodeyard/touched-by";

/// The buildset whose namespace a node of the label comes into, if any.
pub(super) fn shared_by(label: &ClusterLabel, order: &CreateOrder) -> Option<Buildset> {
    match label.share {
        Share::Buildset => Buildset::of(&order.request),
        Share::None => None,
    }
}

impl KubernetesDriver {
    pub(super) async fn come_in(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let Some(namespace) = self.shared_space(link, order, label, buildset).await? else {
            return Ok(Step::wait(self.options.poll.most));
        };
        let member = self
            .make_member(link, order, label, buildset, &namespace)
            .await?;
        let place = Place::member(namespace, member.name.as_str());
        state.external_id = Some(place.external_id());
        if !self.touch(link, &place.namespace, order.node, now).await? {
            // Somebody removes the namespace, and the member with it.
            return Ok(Step::wait(self.options.poll.most));
        }
        state.write(&Create::Furnishing {
            namespace: place.namespace,
            since: now,
            member: Some(member),
        })?;
        Ok(Step::go_on())
    }

    /// The namespace of the buildset, made if there is none. None while an earlier one goes.
    async fn shared_space(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
    ) -> Result<Option<String>, Error> {
        let mut labels = marks::space_labels(label, order);
        labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
        labels.insert(SHARED.to_owned(), "buildset".into());
        let marks = Marks {
            labels,
            annotations: marks::texts(Some(&label.hardening.namespace_annotations)),
            // Its members count, not the namespace.
            takes: nodeyard_model::Resources::default(),
        };
        let holders = self.holders(link);
        let system = &self.options.owner.system;
        let names = [
            names::shared_space(buildset.as_str()),
            names::shared_space_of_system(buildset.as_str(), system.as_str()),
        ];
        for name in &names {
            if holders.make_space(name, &marks).await? {
                return Ok(Some(name.clone()));
            }
            let found = holders.object(&Place::space(name.as_str())).await?;
            let Some(found) = found else { return Ok(None) };
            let of_buildset = found.label(BUILDSET) == Some(buildset.as_str());
            let holder = found.into_holder(self.options.holder, &self.options.owner);
            if let Some(holder) = holder
                && holder.shared
                && of_buildset
                && holder.tags.system.as_ref() == Some(system)
            {
                return Ok((!holder.leaving).then(|| name.clone()));
            }
        }
        Err(Error::new(
            ErrorClass::Failed,
            format!(
                "others use the namespaces {} that buildset {} could have; delete one",
                names.join(" and "),
                buildset.as_str()
            ),
        ))
    }

    async fn make_member(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        buildset: &Buildset,
        namespace: &str,
    ) -> Result<Member, Error> {
        let name = names::member(order.node);
        let mut labels = marks::labels(label, order);
        labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
        let marks = Marks {
            labels,
            annotations: serde_json::Map::new(),
            takes: marks::takes(label),
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": marks.labels,
                "annotations": marks.annotations(),
            },
        });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let made = link.api.create::<ConfigMap>("make a node", &path, &body);
        let uid = match made.await? {
            Made::New(made) => made.uid(),
            Made::Exists => {
                let place = Place::member(namespace, name.as_str());
                let holder = self.holders(link).get(&place).await?;
                match holder {
                    Some(holder) if holder.leaving => None,
                    Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => {
                        holder.uid
                    }
                    Some(_) => {
                        return Err(Error::new(
                            ErrorClass::Failed,
                            format!("{name} in {namespace} is somebody else's; delete it"),
                        ));
                    }
                    None => None,
                }
            }
        };
        let uid = uid.ok_or_else(|| Error::retry(format!("{name} in {namespace} is going")))?;
        Ok(Member { name, uid })
    }

    /// Says to whoever removes the namespace that somebody is in it. False if that is too late.
    async fn touch(
        &self,
        link: &Link,
        namespace: &str,
        node: NodeId,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let path = format!("/api/v1/namespaces/{namespace}");
        let text = format!("{node} {}", now.as_secs());
        let change = json!({"metadata": {"annotations": {TOUCHED: text}}});
        let changed = link
            .api
            .change::<Value>("come into a namespace", &path, &change)
            .await?;
        let leaving = "/metadata/deletionTimestamp";
        Ok(changed.is_some_and(|changed| changed.pointer(leaving).is_none()))
    }

    /// Removes a shared namespace that nobody is in any more. What is to be waited for is returned.
    pub(super) async fn vacate(
        &self,
        link: &Link,
        namespace: &str,
    ) -> Result<Option<Place>, Error> {
        let space = Place::space(namespace);
        let holders = self.holders(link);
        let Some(holder) = holders.get(&space).await? else {
            return Ok(None);
        };
        let ours = holder.tags.system.as_ref() == Some(&self.options.owner.system);
        if !ours || !holder.shared {
            return Ok(None);
        }
        let place = Place {
            uid: holder.uid.clone(),
            ..space
        };
        if holder.leaving {
            return Ok(Some(place));
        }
        if self.has_members(link, namespace).await? {
            return Ok(None);
        }
        self.remove_space(link, &holder).await?;
        Ok(Some(place))
    }

    async fn has_members(&self, link: &Link, namespace: &str) -> Result<bool, Error> {
        let system = names::label_value(self.options.owner.system.as_str());
        let selector = format!("nodeyard_system_id={system},{BUILDSET}");
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let query = format!("labelSelector={}", escape(&selector));
        let members = link.api.list::<Object>("list nodes", &path, &query).await?;
        Ok(!members.is_empty())
    }

    async fn remove_space(&self, link: &Link, holder: &Holder) -> Result<(), Error> {
        const GRACE: Option<u32> = Some(1);
        let path = format!("/api/v1/namespaces/{}", holder.place.namespace);
        let removal = Removal {
            uid: holder.uid.as_deref(),
            version: holder.version.as_deref(),
            ..Removal::default()
        };
        link.api
            .delete("delete a shared namespace", &path, &removal)
            .await?;
        // Only now can there be none of a newcomer among them.
        let pods = format!("{path}/pods");
        let at_once = Removal {
            grace: GRACE,
            ..Removal::default()
        };
        link.api.delete("delete pods", &pods, &at_once).await
    }

    /// None once a namespace that was removed has gone, whatever else has its name by then.
    pub(super) async fn same_is_there(
        &self,
        link: &Link,
        place: &Place,
        age: Duration,
    ) -> Result<Option<Step<()>>, Error> {
        let holder = self.holders(link).get(place).await?;
        let there = holder.is_some_and(|holder| holder.uid == place.uid);
        Ok(there.then(|| Step::wait(self.options.poll.after(age))))
    }
}
