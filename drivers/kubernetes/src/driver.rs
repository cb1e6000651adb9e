//! The driver.

mod access;
mod begin;
mod boot;
mod create;
mod delete;
mod evidence;
mod furnish;
mod gateway;
mod host_keys;
mod peers;
mod pod;
mod quarters;
mod registry;
mod share;
mod tunnels;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use nodeyard_config::{PeerAccess, Share};
use nodeyard_driver::{
    Capabilities, CreateOrder, Driver, Error, EventKey, ExternalId, Instance, Readiness, Resource,
    ResourceKind, State, Step, Target, Wait,
};
use nodeyard_model::{Label, Limits, NodeId, PoolName, Resources, Timestamp};
use nodeyard_nodescan::Scanner;

use crate::api::Api;
use crate::body::marks;
use crate::connection::{Connect, Connection};
use crate::feed::Feed;
use crate::forward::Tunnels;
use crate::holder::{HolderKind, Holders, selector};
use crate::options::Options;

/// A driver for one provider.
pub struct KubernetesDriver {
    options: Options,
    connect: Arc<dyn Connect>,
    scanner: Arc<dyn Scanner>,
    link: Mutex<Option<Arc<Link>>>,
    /// What launches wait for, in words.
    progress: Mutex<HashMap<NodeId, String>>,
    tunnels: Tunnels,
}

/// A cluster that is talked to, and listened to.
#[derive(Debug)]
struct Link {
    connection: Connection,
    api: Api,
    feeds: Feeds,
}

/// What an account may follow differs: all namespaces, its own projects one by one, or the pools' projects.
#[derive(Debug, Default)]
struct Feeds {
    namespaces: Option<Feed<Namespace>>,
    /// By namespace, or all in one under the empty name.
    pods: HashMap<String, Feed<Pod>>,
}

impl Feeds {
    fn start(options: &Options, connection: &Connection) -> Self {
        let selector = selector(&options.owner);
        let client = || connection.watching.clone();
        match options.holder {
            HolderKind::Namespace => Self {
                namespaces: Some(Feed::start(kube::Api::all(client()), &selector)),
                pods: HashMap::from([(
                    String::new(),
                    Feed::start(kube::Api::all(client()), &selector),
                )]),
            },
            // A user sees projects as they come; each is looked at by itself.
            HolderKind::Project => Self::default(),
            HolderKind::Pod => Self {
                namespaces: None,
                pods: (options.pools.iter())
                    .map(|pool| {
                        let api = kube::Api::namespaced(client(), pool.name.as_str());
                        (pool.name.to_string(), Feed::start(api, &selector))
                    })
                    .collect(),
            },
        }
    }

    /// Whether the cluster tells what becomes of pods there.
    fn tell_of_pods(&self, namespace: &str) -> bool {
        self.pods(namespace).is_some_and(Feed::is_live)
    }

    fn pods(&self, namespace: &str) -> Option<&Feed<Pod>> {
        self.pods.get(namespace).or_else(|| self.pods.get(""))
    }
}

impl fmt::Debug for KubernetesDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KubernetesDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

/// What is waited for, in the text of an event.
#[derive(Debug, PartialEq, Eq)]
struct Awaited<'k> {
    namespace: &'k str,
    pod: Option<&'k str>,
    version: &'k str,
    seen: bool,
}

impl<'k> Awaited<'k> {
    /// Names have no spaces in them.
    fn key(&self) -> EventKey {
        let pod = self.pod.unwrap_or("-");
        let seen = if self.seen { "seen" } else { "new" };
        EventKey::new(format!("{} {pod} {} {seen}", self.namespace, self.version))
    }

    fn of(key: &'k EventKey) -> Option<Self> {
        let mut parts = key.as_str().split(' ');
        Some(Self {
            namespace: parts.next()?,
            pod: parts.next().filter(|pod| *pod != "-"),
            version: parts.next()?,
            seen: parts.next()? == "seen",
        })
    }
}

impl KubernetesDriver {
    /// The cluster is looked for when it is first needed.
    pub fn new(options: Options, connect: Arc<dyn Connect>, scanner: Arc<dyn Scanner>) -> Self {
        Self {
            options,
            connect,
            scanner,
            link: Mutex::default(),
            progress: Mutex::default(),
            tunnels: Tunnels::default(),
        }
    }

    async fn link(&self) -> Result<Arc<Link>, Error> {
        if let Some(link) = &*self.known_link() {
            return Ok(Arc::clone(link));
        }
        let connection = self.connect.connect().await?;
        let mut known = self.known_link();
        // Somebody else may have been faster.
        if let Some(link) = &*known {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link {
            api: Api {
                client: connection.client.clone(),
                limit: self.options.call_limit,
                stale: Arc::default(),
            },
            feeds: Feeds::start(&self.options, &connection),
            connection,
        });
        self.tunnels.use_client(&link.connection.client);
        *known = Some(Arc::clone(&link));
        Ok(link)
    }

    /// None if there is none, or if the cluster does not know us any more: the credentials are read again then.
    fn known_link(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.as_ref().is_some_and(|link| link.api.is_stale()) {
            *link = None;
        }
        link
    }

    fn holders<'a>(&'a self, link: &'a Link) -> Holders<'a> {
        Holders {
            kind: self.options.holder,
            owner: &self.options.owner,
            api: &link.api,
            shares: self.options.shares(),
        }
    }

    /// Where pods of other nodes are too.
    fn shared_spaces(&self) -> Vec<&str> {
        match self.options.holder {
            HolderKind::Namespace | HolderKind::Project => Vec::new(),
            HolderKind::Pod => {
                let pools = self.options.pools.iter();
                pools.map(|pool| pool.name.as_str()).collect()
            }
        }
    }

    fn note_progress(&self, node: NodeId, text: Option<String>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match text {
            Some(text) => progress.insert(node, text),
            None => progress.remove(&node),
        };
    }
}

#[async_trait]
impl Driver for KubernetesDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            launches: true,
            manages_images: false,
        }
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let link = self.link().await?;
        let holders = self
            .holders(&link)
            .list(&self.shared_spaces(), None)
            .await?;
        let resources = holders.into_iter().map(|holder| Resource {
            kind: ResourceKind::INSTANCES,
            id: holder.place.external_id(),
            name: Some(holder.place.name().into()),
            tags: holder.tags,
            takes: holder.takes.unwrap_or_else(|| Resources::new(0, 1, 0)),
        });
        Ok(resources.collect())
    }

    async fn create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let step = self.step_create(order, state, now).await;
        if !matches!(step, Ok(Step::Wait(_))) {
            self.note_progress(order.node, None);
        }
        step
    }

    async fn delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        self.step_delete(target, state, now).await
    }

    /// What a cluster has in all is nobody's to know: namespaces have quotas, and its nodes come and go.
    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        Ok(marks::takes(self.options.label(pool, label)?))
    }

    async fn zones(&self, _pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    /// Images are the cluster's business.
    async fn readiness(
        &self,
        pool: &PoolName,
        label: &Label,
        _now: Timestamp,
    ) -> Result<Readiness, Error> {
        self.options.label(pool, label)?;
        Ok(Readiness::Ready)
    }

    /// Opens the tunnels that an earlier process had, and closes those of pods that have gone.
    async fn attend(&self, _now: Timestamp) -> Result<Option<Wait>, Error> {
        if !self.options.forwards() {
            return Ok(None);
        }
        let link = self.link().await?;
        let at_most = match self.options.holder {
            HolderKind::Project => self.open_tunnels_into_projects(&link).await?,
            HolderKind::Namespace | HolderKind::Pod => self.attend_tunnels(&link).await,
        };
        Ok(Some(Wait {
            at_most,
            event: None,
        }))
    }

    async fn cluster(&self) -> Option<Box<str>> {
        if let Some(id) = &self.options.cluster_id {
            return Some(id.clone());
        }
        // Without a kubeconfig nobody knows, and nothing can be launched either.
        let link = self.link().await.ok()?;
        Some(link.connection.host.as_str().into())
    }

    fn binds(&self, pool: &PoolName, label: &Label) -> bool {
        let label = self.options.label(pool, label);
        label.is_ok_and(|label| {
            label.share != Share::None || label.buildset_peer_access != PeerAccess::None
        })
    }

    async fn evidence(
        &self,
        _pool: &PoolName,
        _label: &Label,
        id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        self.collect_evidence(id).await
    }

    fn progress(&self, node: NodeId) -> Option<String> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.get(&node).cloned()
    }

    async fn event(&self, event: &EventKey) {
        let (Some(awaited), Ok(link)) = (Awaited::of(event), self.link().await) else {
            return std::future::pending().await;
        };
        let Awaited {
            namespace,
            pod,
            version,
            seen,
        } = awaited;
        match pod {
            Some(pod) => match link.feeds.pods(namespace) {
                Some(feed) => feed.changed(namespace, pod, version, seen).await,
                None => std::future::pending().await,
            },
            None => match &link.feeds.namespaces {
                Some(feed) => feed.changed("", namespace, version, seen).await,
                None => std::future::pending().await,
            },
        }
    }
}

/// Waits for what the cluster will tell, or as long as looking costs little.
fn wait<T>(awaited: &Awaited<'_>, at_most: Duration) -> Step<T> {
    Step::Wait(Wait {
        at_most,
        event: Some(awaited.key()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_survives_as_a_text() {
        for pod in [None, Some("p-1")] {
            for seen in [true, false] {
                let awaited = Awaited {
                    namespace: "main-0000000001",
                    pod,
                    version: "42",
                    seen,
                };
                assert_eq!(Awaited::of(&awaited.key()), Some(awaited));
            }
        }
        assert_eq!(Awaited::of(&EventKey::new("backing")), None);
    }
}
