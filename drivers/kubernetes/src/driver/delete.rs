//! Deletes a node and waits until it is gone.

use std::time::Duration;

use kube::ResourceExt as _;
use nodeyard_driver::{Error, PollTimer, Tags, Target};
use nodeyard_model::NodeId;

use super::{ClusterLink, KubernetesDriver};
use crate::holder::{HolderKind, HolderRef, NodeHolder};
use crate::names;

/// The longest time between two looks at a holder whose changes the cluster reports.
const MAX_WAIT: Duration = Duration::from_secs(10);

impl KubernetesDriver {
    pub(super) async fn delete_target(&self, target: &Target) -> Result<(), Error> {
        let link = self.link().await?;
        let mut node = match target {
            Target::Node { node, .. } => Some(*node),
            Target::Resource { .. } => None,
        };
        let holders = self.holders(&link);
        let mut references = Vec::new();
        for holder in self.find(&link, target).await? {
            node = node.or(holder.tags.node);
            if holder.shared {
                references.push(missing_member(holder.reference.namespace));
                continue;
            }
            holders.delete(&holder).await?;
            references.push(holder.reference);
        }
        if references.is_empty() {
            // The member may be gone, and its shared namespace left behind.
            let named = self.named_holder(target);
            references.extend(named.filter(|reference| reference.member.is_some()));
        }
        let timer = self.options.poll.start();
        for reference in references {
            self.wait_until_gone(&link, &reference, timer).await?;
            if reference.member.is_some()
                && let Some(namespace) = self.delete_if_empty(&link, &reference.namespace).await?
            {
                self.wait_until_gone(&link, &namespace, timer).await?;
            }
        }
        if let Some(node) = node {
            self.tunnels.close(node);
            self.release_ports(&link, node).await?;
        }
        Ok(())
    }

    async fn find(&self, link: &ClusterLink, target: &Target) -> Result<Vec<NodeHolder>, Error> {
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
            let text = format!("{id} is not the id of a node in a cluster");
            return Err(Error::permanent(text));
        }
        let Some(reference) = self.named_holder(target) else {
            // Its pool is no longer in the configuration: only the node's id can be searched for.
            return match node {
                Some(node) => self.find_by_tags(link, node).await,
                None => Ok(Vec::new()),
            };
        };
        let holder = holders.get(&reference).await?;
        let holder =
            holder.filter(|holder| node.is_none_or(|node| self.may_delete(&holder.tags, node)));
        Ok(holder.into_iter().collect())
    }

    async fn find_by_tags(
        &self,
        link: &ClusterLink,
        node: NodeId,
    ) -> Result<Vec<NodeHolder>, Error> {
        let holders = self.holders(link);
        let mut found = holders.list(&self.shared_namespaces(), Some(node)).await?;
        if self.options.holder != HolderKind::Project {
            return Ok(found);
        }
        // A project that was just created is not listed yet. It has one of two names.
        let system = self.options.owner.system.as_str();
        for pool in &self.options.pools {
            let pool = pool.name.as_str();
            let usual = names::namespace(pool, node);
            let own = names::namespace_of_system(pool, node, system);
            for name in [usual, own] {
                let reference = HolderRef::namespace(name);
                if found.iter().any(|known| known.reference == reference) {
                    continue;
                }
                let holder = holders.get(&reference).await?;
                found.extend(
                    holder.filter(|holder| self.options.owner.owns_node(&holder.tags, node)),
                );
            }
        }
        Ok(found)
    }

    /// Whether the holder that a record names may be deleted: not if its tags name another node or installation. Names are
    /// reused, also by others.
    fn may_delete(&self, tags: &Tags, node: NodeId) -> bool {
        let others_node = tags.node.is_some_and(|other| other != node);
        let others_system =
            (tags.system.as_ref()).is_some_and(|other| *other != self.options.owner.system);
        !others_node && !others_system
    }

    fn named_holder(&self, target: &Target) -> Option<HolderRef> {
        let id = match target {
            Target::Node { external_id, .. } => external_id.as_ref()?,
            Target::Resource { id, .. } => id,
        };
        self.parse_id(&id.as_text()?)
    }

    pub(super) fn parse_id(&self, id: &str) -> Option<HolderRef> {
        if self.options.holder != HolderKind::Pod {
            return Some(match id.split_once('/') {
                Some((namespace, member)) => HolderRef::member(namespace, member),
                None => HolderRef::namespace(id),
            });
        }
        // The name of a pool may be a prefix of another's.
        let namespaces = self.shared_namespaces();
        let fitting = namespaces.into_iter().filter_map(|space| {
            let pod = id.strip_prefix(space)?.strip_prefix('-')?;
            Some((space, pod))
        });
        let (space, pod) = fitting.max_by_key(|(space, _)| space.len())?;
        Some(HolderRef::pod(space, pod))
    }

    async fn wait_until_gone(
        &self,
        link: &ClusterLink,
        reference: &HolderRef,
        timer: PollTimer,
    ) -> Result<(), Error> {
        let limit = self.options.delete_limit;
        // False if a wait for reports was in vain: then the cluster is asked.
        let mut reported = true;
        loop {
            let age = timer.age();
            if reported
                && age < limit
                && let Some(version) = self.reported_version(link, reference)
            {
                let rest = limit.saturating_sub(age).max(self.options.poll.least);
                reported = link
                    .feeds
                    .holder_changed(reference, &version, MAX_WAIT.min(rest))
                    .await;
                continue;
            }
            let holder = self.existing(link, reference).await?;
            if !reported {
                let version = holder.as_ref().and_then(|holder| holder.version.as_deref());
                link.feeds.confirm_holder(reference, version).await;
                reported = true;
            }
            if holder.is_none() {
                return Ok(());
            }
            if age > limit {
                return Err(self.stuck(link, reference).await);
            }
            timer.tick().await;
        }
    }

    /// Returns the version of the holder that the cluster reported last. None if it is gone or not reported.
    fn reported_version(&self, link: &ClusterLink, reference: &HolderRef) -> Option<String> {
        let namespace = &reference.namespace;
        if reference.member.is_some() || reference.uid.is_some() {
            return None;
        }
        let version = match &reference.pod {
            Some(pod) => {
                let pod = link.feeds.pods(namespace)?.get(namespace, pod)?;
                pod.resource_version()
            }
            None => {
                let namespaces = link.feeds.namespaces.as_ref()?;
                namespaces.get("", namespace)?.resource_version()
            }
        };
        Some(version.unwrap_or_else(|| "0".to_owned()))
    }

    /// Reads a holder. Something else may have got the name of a shared namespace; then that one is gone.
    async fn existing(
        &self,
        link: &ClusterLink,
        reference: &HolderRef,
    ) -> Result<Option<NodeHolder>, Error> {
        let holder = self.holders(link).get(reference).await?;
        Ok(holder.filter(|holder| reference.uid.is_none() || holder.uid == reference.uid))
    }

    /// Returns the error for a holder that still exists after the limit.
    async fn stuck(&self, link: &ClusterLink, reference: &HolderRef) -> Error {
        let object = self.holders(link).object(reference).await;
        let reasons = match object {
            Ok(Some(object)) => object.deletion_blockers(),
            Ok(None) => Vec::new(),
            Err(error) => return error,
        };
        let reasons = if reasons.is_empty() {
            "the cluster gives no reason".to_owned()
        } else {
            reasons.join("; ")
        };
        Error::retry(format!(
            "{} still exists {} s after it was deleted: {reasons}",
            reference.name(),
            self.options.delete_limit.as_secs()
        ))
    }
}

/// Names a member that does not exist, so that its namespace is deleted if it has no other.
fn missing_member(namespace: String) -> HolderRef {
    HolderRef::member(namespace, "nobody")
}
