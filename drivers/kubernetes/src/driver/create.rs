//! Making a node: its holder, what belongs into it, and the wait until it can be used.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, Expose, NodeKind};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, State, Step};
use nodeyard_model::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::furnish::{Furniture, ssh_objects};
use super::peers::open_to;
use super::quarters::{Member, Quarters, owned_by_pod};
use super::share::shared_by;
use super::{Awaited, KubernetesDriver, Link, wait};
use crate::api::Made;
use crate::body::marks;
use crate::body::pod::PodPlan;
use crate::body::ssh::SshPlan;
use crate::buildset::{BUILDSET, PEERS};
use crate::forward::FORWARD;
use crate::holder::{Holder, HolderKind, Marks, Place};
use crate::names;
use crate::verdict::{Verdict, judge};

/// A safety net: what happens is told by the cluster.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// An autoscaler makes room for the pod.
const SCALES_UP: &str = "TriggeredScaleUp";

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

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Booting {
    pub(super) node: NodeId,
    pub(super) namespace: String,
    /// None for a node that is the namespace itself.
    pub(super) pod: Option<String>,
    /// Where the namespace is shared.
    #[serde(default)]
    pub(super) member: Option<Member>,
    pub(super) since: Timestamp,
    /// Since when the pod runs.
    pub(super) running: Option<Timestamp>,
}

impl Booting {
    pub(super) fn quarters(&self) -> Quarters<'_> {
        Quarters {
            node: self.node,
            namespace: &self.namespace,
            member: self.member.as_ref(),
        }
    }
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
                let name = |label: &ClusterLabel| match member {
                    Some(_) => names::shared_pod(label.name.as_str(), order.node),
                    None => label.name.to_string(),
                };
                let place = Booting {
                    node: order.node,
                    pod: is_pod(label).then(|| name(label)),
                    namespace,
                    member,
                    since,
                    running: None,
                };
                match self.fill(&link, order, label, &place).await {
                    Ok(version) => {
                        let pod = place.pod.as_deref();
                        let step = first_look(&link, &place.namespace, pod, version.as_deref());
                        state.write(&Create::Booting { place })?;
                        Ok(step)
                    }
                    Err(error) => {
                        let holder = match place.member {
                            Some(member) => Place::member(place.namespace, member.name),
                            None => Place::space(place.namespace),
                        };
                        Err(self.or_vanished(&link, state, &holder, error).await)
                    }
                }
            }
            Create::Booting { place } => self.follow(&link, order, label, place, state, now).await,
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

    /// Makes the holder, or takes over what an earlier run has made.
    async fn begin(
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
        if !state.take_fresh() {
            let holders = self.holders(link);
            let mut earlier = holders
                .list(&self.shared_spaces(), Some(order.node))
                .await?;
            // What it has made for others too is found again below.
            earlier.retain(|holder| !holder.shared);
            if earlier.iter().any(|holder| holder.leaving) {
                return Ok(Step::wait(self.options.poll.most));
            }
            if let Some(holder) = earlier.pop() {
                for surplus in &earlier {
                    holders.delete(surplus).await?;
                }
                if let Some(buildset) = shared_by(label, order) {
                    // It may not have been seen by whoever removes the namespace.
                    return self
                        .come_in(link, order, label, &buildset, state, now)
                        .await;
                }
                state.external_id = Some(holder.place.external_id());
                self.expose_pod(link, order, label, &holder.place, holder.uid.as_deref())
                    .await?;
                return self.made(link, order, state, holder.place, None, now);
            }
        }
        state.external_id = None;
        if let Some(buildset) = shared_by(label, order) {
            return self
                .come_in(link, order, label, &buildset, state, now)
                .await;
        }
        if self.options.holder == HolderKind::Pod {
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
            state.external_id = Some(place.external_id());
            self.expose_pod(link, order, label, &place, uid.as_deref())
                .await?;
            return self.made(link, order, state, place, version.as_deref(), now);
        }
        let place = Place::space(self.make_space(link, order, label).await?);
        self.made(link, order, state, place, None, now)
    }

    fn made(
        &self,
        link: &Link,
        order: &CreateOrder,
        state: &mut State,
        place: Place,
        version: Option<&str>,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        state.external_id = Some(place.external_id());
        let Place { namespace, pod, .. } = place;
        let Some(pod) = pod else {
            state.write(&Create::Furnishing {
                namespace,
                since: now,
                member: None,
            })?;
            return Ok(Step::go_on());
        };
        let step = first_look(link, &namespace, Some(&pod), version);
        let place = Booting {
            node: order.node,
            namespace,
            pod: Some(pod),
            member: None,
            since: now,
            running: None,
        };
        state.write(&Create::Booting { place })?;
        Ok(step)
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
        let usual = names::space(pool, order.node);
        let own = names::space_of_system(pool, order.node, system);
        for name in [usual, own] {
            if holders.make_space(&name, &marks).await? {
                return Ok(name);
            }
            let place = Place::space(name);
            match holders.get(&place).await? {
                Some(holder) if self.options.owner.owns_node(&holder.tags, order.node) => {
                    if holder.leaving {
                        let name = place.namespace;
                        return Err(Error::retry(format!("namespace {name} has not gone yet")));
                    }
                    return Ok(place.namespace);
                }
                _ => {}
            }
        }
        Err(Error::new(
            ErrorClass::Failed,
            format!(
                "others use the names of the namespace for node {}",
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
                    "pod {} in {} is somebody else's",
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

    /// What a pod among others needs beside it. It goes with the pod, so the pod has to be there first.
    async fn expose_pod(
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

    /// None if it was there already.
    async fn make_pod(
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

    /// Looks at the pod until it can be used.
    async fn follow(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        mut place: Booting,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let Some(name) = place.pod.clone() else {
            return self.hand_out(link, order, label, &place, None, now).await;
        };
        let (pod, seen) = self.look(link, &place.namespace, &name).await?;
        let Some(pod) = pod else {
            state.write(&Create::Ordered)?;
            return Err(Error::new(
                ErrorClass::Failed,
                format!(
                    "pod {name} in {} was deleted during the launch",
                    place.namespace
                ),
            ));
        };
        let age = now.since(place.since);
        let waiting = match judge(&pod) {
            Verdict::Running { ready } if ready || label.ssh.is_none() => {
                if place.running.is_none() {
                    place.running = Some(now);
                    state.write(&Create::Booting {
                        place: place.clone(),
                    })?;
                }
                return self
                    .hand_out(link, order, label, &place, Some(&pod), now)
                    .await;
            }
            Verdict::Running { .. } => {
                "the pod runs, and nobody answers at its SSH port yet".to_owned()
            }
            Verdict::Waiting(text) => text,
            Verdict::Unschedulable(text) => {
                let patience = self.options.scheduling_patience;
                if age >= patience && !self.scales_up(link, &place.namespace, &name).await? {
                    return Err(Error::new(
                        ErrorClass::Capacity,
                        format!("no node of the cluster takes pod {name}: {text}"),
                    ));
                }
                self.note_progress(order.node, Some(text));
                let rest = patience.saturating_sub(age).max(self.options.poll.least);
                let at_most = if age >= patience {
                    self.options.poll.most
                } else {
                    rest
                };
                return Ok(wait(&awaited(&place.namespace, &name, &pod, seen), at_most));
            }
            Verdict::Failed(error) => {
                return Err(self.with_events(link, &place.namespace, &name, error).await);
            }
        };
        let limit = self.options.pod_limit;
        if age > limit {
            let text = format!(
                "pod {name} does not run after {} s: {waiting}",
                limit.as_secs()
            );
            let error = Error::new(ErrorClass::Failed, text);
            return Err(self.with_events(link, &place.namespace, &name, error).await);
        }
        self.note_progress(order.node, Some(waiting));
        let at_most = if link.feeds.tell_of_pods(&place.namespace) {
            LONGEST_WAIT.min(limit.saturating_sub(age).max(self.options.poll.least))
        } else {
            self.options.poll.after(age)
        };
        Ok(wait(&awaited(&place.namespace, &name, &pod, seen), at_most))
    }

    /// The pod, and whether it is the cluster that told about it.
    async fn look(
        &self,
        link: &Link,
        namespace: &str,
        name: &str,
    ) -> Result<(Option<Arc<Pod>>, bool), Error> {
        let feed = link.feeds.pods(namespace);
        if let Some(pod) = feed.and_then(|feed| feed.get(namespace, name)) {
            return Ok((Some(pod), true));
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod = link.api.get::<Pod>("look at a pod", &path).await?;
        Ok((pod.map(Arc::new), false))
    }

    async fn scales_up(&self, link: &Link, namespace: &str, pod: &str) -> Result<bool, Error> {
        let events = self.events(link, namespace, Some(pod)).await?;
        Ok(events
            .iter()
            .any(|event| event.reason.as_deref() == Some(SCALES_UP)))
    }
}

pub(super) fn is_pod(label: &ClusterLabel) -> bool {
    label.node_kind() == NodeKind::Pod
}

fn awaited<'a>(namespace: &'a str, name: &'a str, pod: &'a Pod, seen: bool) -> Awaited<'a> {
    Awaited {
        namespace,
        pod: Some(name),
        version: pod.metadata.resource_version.as_deref().unwrap_or("0"),
        seen,
    }
}

/// Of a pod that was made just now, the cluster will tell what becomes of it.
fn first_look(
    link: &Link,
    namespace: &str,
    pod: Option<&str>,
    version: Option<&str>,
) -> Step<Instance> {
    match (pod, version) {
        (Some(pod), Some(version)) if link.feeds.tell_of_pods(namespace) => {
            let awaited = Awaited {
                namespace,
                pod: Some(pod),
                version,
                seen: false,
            };
            wait(&awaited, Duration::from_secs(1))
        }
        _ => Step::go_on(),
    }
}
