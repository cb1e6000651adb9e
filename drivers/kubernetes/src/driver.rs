//! [`KubernetesDriver`]: what it is made of, and which operation is in which module.

mod access;
mod boot;
mod create;
mod delete;
mod evidence;
mod gateway;
mod holders;
mod host_keys;
mod namespace;
mod peers;
mod pod;
mod registry;
mod setup;
mod share;
mod tunnels;

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use nodeyard_config::{PeerAccess, Share};
use nodeyard_driver::{
    CreateOrder, Driver, Error, ExternalId, Instance, Machines, Progress, Readiness, Resource,
    ResourceKind, Target,
};
use nodeyard_model::{Label, Limits, PoolName, Resources};
use nodeyard_nodescan::Scanner;
use tokio::time::{sleep, timeout};

use crate::api::Api;
use crate::body::metadata;
use crate::connection::{Connect, Connection};
use crate::feed::WatchFeed;
use crate::forward::Tunnels;
use crate::holder::{HolderKind, HolderRef, Holders, selector};
use crate::options::Options;

/// A driver for one provider.
pub struct KubernetesDriver {
    options: Options,
    connect: Arc<dyn Connect>,
    scanner: Arc<dyn Scanner>,
    link: Mutex<Option<Arc<ClusterLink>>>,
    tunnels: Tunnels,
}

/// A connection to a cluster, with the feeds of its changes.
#[derive(Debug)]
struct ClusterLink {
    connection: Connection,
    api: Api,
    feeds: WatchFeeds,
}

/// What an account may watch: all namespaces, or the projects of the pools. Its own projects it can only read one by one.
#[derive(Debug, Default)]
struct WatchFeeds {
    namespaces: Option<WatchFeed<Namespace>>,
    /// By namespace, or all in one under the empty name.
    pods: HashMap<String, WatchFeed<Pod>>,
}

impl WatchFeeds {
    fn start(options: &Options, connection: &Connection) -> Self {
        let selector = selector(&options.owner);
        let client = || connection.watching.clone();
        match options.holder {
            HolderKind::Namespace => Self {
                namespaces: Some(WatchFeed::start(kube::Api::all(client()), &selector)),
                pods: HashMap::from([(
                    String::new(),
                    WatchFeed::start(kube::Api::all(client()), &selector),
                )]),
            },
            // Users cannot watch projects.
            HolderKind::Project => Self::default(),
            HolderKind::Pod => Self {
                namespaces: None,
                pods: (options.pools.iter())
                    .map(|pool| {
                        let api = kube::Api::namespaced(client(), pool.name.as_str());
                        (pool.name.to_string(), WatchFeed::start(api, &selector))
                    })
                    .collect(),
            },
        }
    }

    /// Whether the cluster reports changes of pods in the namespace at the moment.
    fn reports_pods(&self, namespace: &str) -> bool {
        self.pods(namespace).is_some_and(WatchFeed::is_live)
    }

    fn pods(&self, namespace: &str) -> Option<&WatchFeed<Pod>> {
        self.pods.get(namespace).or_else(|| self.pods.get(""))
    }

    /// Whether the pod is among those that the cluster has reported.
    fn has_pod(&self, namespace: &str, name: &str) -> bool {
        let feed = self.pods(namespace);
        feed.is_some_and(|feed| feed.get(namespace, name).is_some())
    }

    /// Waits until the cluster reports another version of a pod, or its end if it was `seen` in the feed; at most `limit`.
    /// Returns false if nothing was reported.
    async fn pod_changed(
        &self,
        (namespace, name): (&str, &str),
        version: &str,
        seen: bool,
        limit: Duration,
    ) -> bool {
        let change = async {
            match self.pods(namespace) {
                Some(feed) => feed.changed(namespace, name, version, seen).await,
                None => pending().await,
            }
        };
        timeout(limit, change).await.is_ok()
    }

    /// Compares what was reported of a pod with the `version` that the API server has, None if it is gone.
    async fn confirm_pod(&self, namespace: &str, name: &str, version: Option<&str>) {
        if let Some(feed) = self.pods(namespace) {
            feed.confirm(namespace, name, version).await;
        }
    }

    /// Compares what was reported of a namespace or pod with the `version` that the API server has, None if it is gone.
    async fn confirm_holder(&self, holder: &HolderRef, version: Option<&str>) {
        let namespace = holder.namespace.as_str();
        match (&holder.pod, &self.namespaces) {
            (Some(pod), _) => self.confirm_pod(namespace, pod, version).await,
            (None, Some(feed)) => feed.confirm("", namespace, version).await,
            (None, None) => {}
        }
    }

    /// Waits until the cluster reports a change of a namespace or pod that was seen in a feed; at most `limit`. Returns
    /// false if nothing was reported.
    async fn holder_changed(&self, holder: &HolderRef, version: &str, limit: Duration) -> bool {
        let namespace = holder.namespace.as_str();
        match (&holder.pod, &self.namespaces) {
            (Some(pod), _) => {
                self.pod_changed((namespace, pod), version, true, limit)
                    .await
            }
            (None, Some(feed)) => {
                let change = feed.changed("", namespace, version, true);
                timeout(limit, change).await.is_ok()
            }
            (None, None) => {
                sleep(limit).await;
                false
            }
        }
    }
}

impl fmt::Debug for KubernetesDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KubernetesDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl KubernetesDriver {
    /// Connects with the first call.
    pub fn new(options: Options, connect: Arc<dyn Connect>, scanner: Arc<dyn Scanner>) -> Self {
        Self {
            options,
            connect,
            scanner,
            link: Mutex::default(),
            tunnels: Tunnels::default(),
        }
    }

    async fn link(&self) -> Result<Arc<ClusterLink>, Error> {
        if let Some(link) = &*self.known_link() {
            return Ok(Arc::clone(link));
        }
        let connection = self.connect.connect().await?;
        let mut known = self.known_link();
        // Another call may have been faster.
        if let Some(link) = &*known {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(ClusterLink {
            api: Api {
                client: connection.client.clone(),
                limit: self.options.call_limit,
                stale: Arc::default(),
            },
            feeds: WatchFeeds::start(&self.options, &connection),
            connection,
        });
        self.tunnels.use_client(&link.connection.client);
        *known = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Returns None if there is none yet, or if the cluster has rejected the credentials: they are read again then.
    fn known_link(&self) -> MutexGuard<'_, Option<Arc<ClusterLink>>> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.as_ref().is_some_and(|link| link.api.is_stale()) {
            *link = None;
        }
        link
    }

    fn holders<'a>(&'a self, link: &'a ClusterLink) -> Holders<'a> {
        Holders {
            kind: self.options.holder,
            owner: &self.options.owner,
            api: &link.api,
            shares: self.options.shares(),
        }
    }

    /// The namespaces in which pods of other nodes are, too.
    fn shared_namespaces(&self) -> Vec<&str> {
        match self.options.holder {
            HolderKind::Namespace | HolderKind::Project => Vec::new(),
            HolderKind::Pod => {
                let pools = self.options.pools.iter();
                pools.map(|pool| pool.name.as_str()).collect()
            }
        }
    }
}

#[async_trait]
impl Driver for KubernetesDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }
}

#[async_trait]
impl Machines for KubernetesDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        self.create_node(order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        self.delete_target(target).await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let link = self.link().await?;
        let holders = self
            .holders(&link)
            .list(&self.shared_namespaces(), None)
            .await?;
        let resources = holders.into_iter().map(|holder| Resource {
            kind: ResourceKind::INSTANCES,
            id: holder.reference.external_id(),
            name: Some(holder.reference.name().into()),
            tags: holder.tags,
            takes: holder.takes.unwrap_or_else(|| Resources::new(0, 1, 0)),
        });
        Ok(resources.collect())
    }

    /// The capacity of a cluster is unknown: namespaces have quotas, and its nodes come and go.
    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        Ok(metadata::takes(self.options.label(pool, label)?))
    }

    /// The cluster pulls images by itself.
    async fn readiness(&self, pool: &PoolName, label: &Label) -> Result<Readiness, Error> {
        self.options.label(pool, label)?;
        Ok(Readiness::Ready)
    }

    async fn cluster(&self) -> Option<Box<str>> {
        if let Some(id) = &self.options.cluster_id {
            return Some(id.clone());
        }
        // Without a kubeconfig nothing can be launched either.
        let link = self.link().await.ok()?;
        Some(link.connection.host.as_str().into())
    }

    fn is_bound_to_request(&self, pool: &PoolName, label: &Label) -> bool {
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

    /// Keeps tunnels open.
    async fn run_background(&self) -> Result<(), Error> {
        if !self.options.forwards() {
            return Ok(());
        }
        self.maintain_tunnels().await
    }
}
