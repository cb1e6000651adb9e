//! The beginning of a node: its holder, made or found.

use kube::ResourceExt as _;
use nodeyard_config::ClusterLabel;
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, State, Step};
use nodeyard_model::Timestamp;

use super::boot::Booting;
use super::create::{Create, is_pod};
use super::furnish::Furniture;
use super::peers::open_to;
use super::quarters::Quarters;
use super::share::shared_by;
use super::{KubernetesDriver, Link};
use crate::body::marks;
use crate::buildset::{BUILDSET, PEERS};
use crate::holder::{Holder, HolderKind, Marks, Place};
use crate::names;

/// A holder that is there.
struct Begun {
    place: Place,
    uid: Option<String>,
    /// Only of a pod that was made just now.
    version: Option<String>,
}

impl KubernetesDriver {
    /// Makes the holder, or takes over what an earlier run has made.
    pub(super) async fn begin(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        // What is wrong with the label shows before anything is made.
        if is_pod(label) {
            self.pod_plan(order, label, label.name.as_str()).body()?;
        }
        let earlier = match state.take_fresh() {
            true => None,
            false => self.earlier(link, order).await?,
        };
        match &earlier {
            Some(holder) if holder.leaving => return Ok(Step::wait(self.options.poll.most)),
            Some(_) => {}
            None => state.external_id = None,
        }
        if let Some(buildset) = shared_by(label, order) {
            // Also if it is in there: it may not have been seen by whoever removes the namespace.
            return self
                .come_in(link, order, label, &buildset, state, now)
                .await;
        }
        let begun = match earlier {
            Some(holder) => Begun {
                place: holder.place,
                uid: holder.uid,
                version: None,
            },
            None => self.make_holder(link, order, label).await?,
        };
        state.external_id = Some(begun.place.external_id());
        self.expose_pod(link, order, label, &begun.place, begun.uid.as_deref())
            .await?;
        let Place { namespace, pod, .. } = begun.place;
        let Some(pod) = pod else {
            state.write(&Create::Furnishing {
                namespace,
                since: now,
                member: None,
            })?;
            return Ok(Step::go_on());
        };
        let place = Booting {
            node: order.node,
            namespace,
            pod: Some(pod),
            member: None,
            since: now,
            running: None,
        };
        let step = place.first_look(link, begun.version.as_deref());
        state.write(&Create::Booting { place })?;
        Ok(step)
    }

    /// What an earlier run has made for the node alone: what is on its way out, as long as there is such a thing. What it
    /// shares with others is found again by its name.
    async fn earlier(&self, link: &Link, order: &CreateOrder) -> Result<Option<Holder>, Error> {
        let holders = self.holders(link);
        let mut found = holders
            .list(&self.shared_spaces(), Some(order.node))
            .await?;
        found.retain(|holder| !holder.shared);
        if let Some(leaving) = found.iter().position(|holder| holder.leaving) {
            return Ok(Some(found.swap_remove(leaving)));
        }
        let kept = found.pop();
        for surplus in &found {
            holders.delete(surplus).await?;
        }
        Ok(kept)
    }

    async fn make_holder(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
    ) -> Result<Begun, Error> {
        match self.options.holder {
            HolderKind::Pod => self.make_pod_among_others(link, order, label).await,
            HolderKind::Namespace | HolderKind::Project => Ok(Begun {
                place: Place::space(self.make_space(link, order, label).await?),
                uid: None,
                version: None,
            }),
        }
    }

    async fn make_pod_among_others(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
    ) -> Result<Begun, Error> {
        let pod = names::shared_pod(label.name.as_str(), order.node);
        let place = Place::pod(order.pool.as_str(), pod);
        let quarters = Quarters {
            node: order.node,
            namespace: &place.namespace,
            member: None,
        };
        let keys = match &label.ssh {
            Some(ssh) => {
                self.host_keys(link, ssh, &place.namespace, place.name())
                    .await?
            }
            None => None,
        };
        let furniture = Furniture {
            pod: Some(place.name()),
            host_keys: keys.as_ref(),
        };
        let made = self
            .make_pod(link, order, label, &quarters, &furniture)
            .await?;
        let (version, uid) = match made {
            Some(pod) => (pod.resource_version(), pod.metadata.uid),
            None => (None, self.taken_over(link, order, &place).await?.uid),
        };
        Ok(Begun {
            place,
            uid,
            version,
        })
    }

    /// The name that Nodepool would give it, unless somebody else has it.
    async fn make_space(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
    ) -> Result<String, Error> {
        let mut labels = marks::space_labels(label, order);
        if let Some(buildset) = open_to(label, order) {
            labels.insert(BUILDSET.to_owned(), buildset.as_str().into());
            labels.insert(PEERS.to_owned(), "services".into());
        }
        let marks = Marks {
            labels,
            annotations: marks::texts(Some(&label.hardening.namespace_annotations)),
            takes: marks::takes(label),
        };
        let holders = self.holders(link);
        let pool = order.pool.as_str();
        let system = self.options.owner.system.as_str();
        let names = [
            names::space(pool, order.node),
            names::space_of_system(pool, order.node, system),
        ];
        for name in &names {
            if holders.make_space(name, &marks).await? {
                return Ok(name.clone());
            }
            match holders.get(&Place::space(name.as_str())).await? {
                Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => {
                    if holder.leaving {
                        return Err(Error::retry(format!("namespace {name} has not gone yet")));
                    }
                    return Ok(name.clone());
                }
                _ => {}
            }
        }
        Err(Error::new(
            ErrorClass::Failed,
            format!(
                "others use the namespaces {} that node {} could have; delete one, or rename pool {pool}",
                names.join(" and "),
                order.node
            ),
        ))
    }

    /// A pod of our name is there; it has to be ours.
    async fn taken_over(
        &self,
        link: &Link,
        order: &CreateOrder,
        place: &Place,
    ) -> Result<Holder, Error> {
        let holder = self.holders(link).get(place).await?;
        match holder {
            Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => Ok(holder),
            Some(_) => Err(Error::new(
                ErrorClass::Failed,
                format!(
                    "pod {} in {} is somebody else's; delete it, or give the pool a project of its own",
                    place.name(),
                    place.namespace
                ),
            )),
            None => Err(Error::retry(format!(
                "pod {} has gone at once",
                place.name()
            ))),
        }
    }
}
