//! Removing a node, and following that until it is gone.

use std::time::Duration;

use kube::ResourceExt as _;
use nodeyard_driver::{Error, State, Step, Tags, Target};
use nodeyard_model::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Awaited, KubernetesDriver, Link, wait};
use crate::holder::{Holder, HolderKind, Place};
use crate::names;

/// A safety net: what happens is told by the cluster.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Ordered,
    /// The cluster is at it.
    Leaving {
        places: Vec<Place>,
        node: Option<NodeId>,
        since: Timestamp,
    },
}

impl KubernetesDriver {
    pub(super) async fn step_delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        let link = self.link().await?;
        match state.read()? {
            Delete::Ordered => {
                let holders = self.holders(&link);
                let mut places = Vec::new();
                let mut node = match target {
                    Target::Node { node, .. } => Some(*node),
                    Target::Resource { .. } => None,
                };
                for holder in self.find(&link, target).await? {
                    node = node.or(holder.tags.node);
                    if holder.shared {
                        places.push(nobody_in(holder.place.namespace));
                        continue;
                    }
                    holders.delete(&holder).await?;
                    places.push(holder.place);
                }
                // The node may have left without anybody looking after its namespace.
                let named = self
                    .named_place(target)
                    .filter(|place| place.member.is_some());
                if places.is_empty() {
                    places.extend(named);
                }
                state.write(&Delete::Leaving {
                    places,
                    node,
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Delete::Leaving {
                places,
                node,
                since,
            } => {
                let age = now.since(since);
                for (index, place) in places.iter().enumerate() {
                    if let Some(step) = self.still_there(&link, place, age).await? {
                        if age > self.options.delete_limit {
                            state.write(&Delete::Ordered)?;
                            return Err(self.hangs(&link, place).await);
                        }
                        return Ok(step);
                    }
                    if place.member.is_some() {
                        let rest = self.vacate(&link, &place.namespace).await?;
                        let mut places = places.clone();
                        places.splice(..=index, rest);
                        state.write(&Delete::Leaving {
                            places,
                            node,
                            since,
                        })?;
                        return Ok(Step::go_on());
                    }
                }
                if let Some(node) = node {
                    self.tunnels.close(node);
                    self.release_ports(&link, node).await?;
                }
                Ok(Step::Done(()))
            }
        }
    }

    async fn find(&self, link: &Link, target: &Target) -> Result<Vec<Holder>, Error> {
        let holders = self.holders(link);
        let (id, node) = match target {
            Target::Node {
                node,
                external_id: None,
            } => return self.find_by_tags(link, *node).await,
            Target::Node {
                node,
                external_id: Some(id),
            } => (id, Some(*node)),
            Target::Resource { id, .. } => (id, None),
        };
        if id.as_text().is_none() {
            let text = format!("{id} is not the name of a node in a cluster");
            return Err(Error::permanent(text));
        }
        let Some(place) = self.named_place(target) else {
            // Its pool is not in the configuration any more: only what carries its id can be found.
            return match node {
                Some(node) => self.find_by_tags(link, node).await,
                None => Ok(Vec::new()),
            };
        };
        let holder = holders.get(&place).await?;
        let holder =
            holder.filter(|holder| node.is_none_or(|node| self.may_touch(&holder.tags, node)));
        Ok(holder.into_iter().collect())
    }

    async fn find_by_tags(&self, link: &Link, node: NodeId) -> Result<Vec<Holder>, Error> {
        let holders = self.holders(link);
        let mut found = holders.list(&self.shared_spaces(), Some(node)).await?;
        if self.options.holder != HolderKind::Project {
            return Ok(found);
        }
        // One that was made a moment ago is in no list yet. It has one of two names.
        let system = self.options.owner.system.as_str();
        for pool in &self.options.pools {
            let pool = pool.name.as_str();
            let usual = names::space(pool, node);
            let own = names::space_of_system(pool, node, system);
            for name in [usual, own] {
                let place = Place::space(name);
                if found.iter().any(|known| known.place == place) {
                    continue;
                }
                let holder = holders.get(&place).await?;
                found.extend(
                    holder.filter(|holder| self.options.owner.owns_node(&holder.tags, node)),
                );
            }
        }
        Ok(found)
    }

    /// The record says that it is the node's. It is believed, unless the thing itself says otherwise: names are used
    /// again, and by others.
    fn may_touch(&self, tags: &Tags, node: NodeId) -> bool {
        let others_node = tags.node.is_some_and(|other| other != node);
        let others_system =
            (tags.system.as_ref()).is_some_and(|other| *other != self.options.owner.system);
        !others_node && !others_system
    }

    fn named_place(&self, target: &Target) -> Option<Place> {
        let id = match target {
            Target::Node { external_id, .. } => external_id.as_ref()?,
            Target::Resource { id, .. } => id,
        };
        self.place(&id.as_text()?)
    }

    pub(super) fn place(&self, id: &str) -> Option<Place> {
        if self.options.holder != HolderKind::Pod {
            return Some(match id.split_once('/') {
                Some((namespace, member)) => Place::member(namespace, member),
                None => Place::space(id),
            });
        }
        // One pool's name may be the beginning of another's.
        let spaces = self.shared_spaces();
        let fitting = spaces.into_iter().filter_map(|space| {
            let pod = id.strip_prefix(space)?.strip_prefix('-')?;
            Some((space, pod))
        });
        let (space, pod) = fitting.max_by_key(|(space, _)| space.len())?;
        Some(Place::pod(space, pod))
    }

    /// None if it has gone; otherwise how to wait for that.
    async fn still_there(
        &self,
        link: &Link,
        place: &Place,
        age: Duration,
    ) -> Result<Option<Step<()>>, Error> {
        let namespace = &place.namespace;
        if place.uid.is_some() {
            return self.same_is_there(link, place, age).await;
        }
        let known = match &place.pod {
            // Nobody tells of these.
            None if place.member.is_some() => None,
            Some(pod) => {
                let feed = link.feeds.pods(namespace);
                let pod = feed.and_then(|feed| feed.get(namespace, pod));
                pod.map(|pod| pod.resource_version())
            }
            None => {
                let feed = link.feeds.namespaces.as_ref();
                let found = feed.and_then(|feed| feed.get("", namespace));
                found.map(|found| found.resource_version())
            }
        };
        if let Some(version) = known
            && age < self.options.delete_limit
        {
            let awaited = Awaited {
                namespace,
                pod: place.pod.as_deref(),
                version: version.as_deref().unwrap_or("0"),
                seen: true,
            };
            let rest = self.options.delete_limit.saturating_sub(age);
            let at_most = LONGEST_WAIT.min(rest.max(self.options.poll.least));
            return Ok(Some(wait(&awaited, at_most)));
        }
        if self.holders(link).get(place).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(Step::wait(self.options.poll.after(age))))
    }

    async fn hangs(&self, link: &Link, place: &Place) -> Error {
        let object = self.holders(link).object(place).await;
        let reasons = match object {
            Ok(Some(object)) => object.hindrances(),
            Ok(None) => Vec::new(),
            Err(error) => return error,
        };
        let reasons = if reasons.is_empty() {
            "the cluster does not say why".to_owned()
        } else {
            reasons.join("; ")
        };
        Error::retry(format!(
            "{} is still there {} s after it was deleted: {reasons}",
            place.name(),
            self.options.delete_limit.as_secs()
        ))
    }
}

/// A member that is not there, in a namespace that has to go if no other is either.
fn nobody_in(namespace: String) -> Place {
    Place::member(namespace, "nobody")
}
