//! Making a node: how far it is, and the step that follows from that.
//!
//! ```text
//! begin     Ordered      the holder, or what an earlier run has made
//! (here)    Furnishing   what belongs into the holder; most of it is in `furnish` and `pod`
//! boot      Booting      the wait until the pod can be used
//! ```

use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, NodeKind};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, State, Step};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::boot::Booting;
use super::furnish::Furniture;
use super::quarters::Member;
use super::{KubernetesDriver, Link};
use crate::holder::Place;
use crate::names;

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) enum Create {
    /// Asked for, perhaps already made without our knowing.
    #[default]
    Ordered,
    /// The namespace is there.
    Furnishing {
        namespace: String,
        since: Timestamp,
        /// Where the namespace is shared.
        #[serde(default)]
        member: Option<Member>,
    },
    /// The pod is there, or whatever else the node is.
    Booting { place: Booting },
}

impl KubernetesDriver {
    pub(super) async fn step_create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let label = self.options.label(&order.pool, &order.label)?;
        let link = self.link().await?;
        match state.read()? {
            Create::Ordered => self.begin(&link, order, label, state, now).await,
            Create::Furnishing {
                namespace,
                since,
                member,
            } => {
                let name = || match member {
                    Some(_) => names::shared_pod(label.name.as_str(), order.node),
                    None => label.name.to_string(),
                };
                let place = Booting {
                    node: order.node,
                    pod: is_pod(label).then(name),
                    namespace,
                    member,
                    since,
                    running: None,
                };
                self.fill_and_boot(&link, order, label, place, state).await
            }
            Create::Booting { place } => self.follow(&link, order, label, place, state, now).await,
        }
    }

    async fn fill_and_boot(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        place: Booting,
        state: &mut State,
    ) -> Result<Step<Instance>, Error> {
        match self.fill(link, order, label, &place).await {
            Ok(version) => {
                let step = place.first_look(link, version.as_deref());
                state.write(&Create::Booting { place })?;
                Ok(step)
            }
            Err(error) => {
                let holder = match place.member {
                    Some(member) => Place::member(place.namespace, member.name),
                    None => Place::space(place.namespace),
                };
                Err(self.or_vanished(link, state, &holder, error).await)
            }
        }
    }

    /// Makes everything but the holder, and returns the version of the pod if there is one and it is new.
    async fn fill(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        place: &Booting,
    ) -> Result<Option<String>, Error> {
        let quarters = place.quarters();
        let keys = match (&label.ssh, &place.pod) {
            (Some(ssh), Some(pod)) => self.host_keys(link, ssh, &place.namespace, pod).await?,
            _ => None,
        };
        let furniture = Furniture {
            pod: place.pod.as_deref(),
            host_keys: keys.as_ref(),
        };
        self.furnish(link, order, label, &quarters, &furniture)
            .await?;
        let grant = self.grant(link, order, label, &quarters, furniture.pod);
        if place.pod.is_none() {
            grant.await?;
            return Ok(None);
        }
        let runs_as = label.hardening.service_account_name.as_deref();
        let pod = self.make_pod(link, order, label, &quarters, &furniture);
        let pod = if runs_as == Some(&*quarters.account()) {
            // Without the account there is no pod.
            grant.await?;
            pod.await?
        } else {
            let (pod, ()) = tokio::try_join!(pod, grant)?;
            pod
        };
        Ok(pod.and_then(|pod| pod.resource_version()))
    }

    /// What went wrong, unless it is that the namespace is not there any more.
    async fn or_vanished(
        &self,
        link: &Link,
        state: &mut State,
        place: &Place,
        error: Error,
    ) -> Error {
        if error.class() != ErrorClass::Retry {
            return error;
        }
        match self.holders(link).get(place).await {
            Ok(None) => self.start_over(state, &place.namespace),
            Ok(Some(holder)) if holder.leaving => self.start_over(state, &place.namespace),
            _ => error,
        }
    }

    fn start_over(&self, state: &mut State, namespace: &str) -> Error {
        state.external_id = None;
        match state.write(&Create::Ordered) {
            Ok(()) => Error::retry(format!(
                "namespace {namespace} was deleted during the launch"
            )),
            Err(error) => error,
        }
    }
}

pub(super) fn is_pod(label: &ClusterLabel) -> bool {
    label.node_kind() == NodeKind::Pod
}
