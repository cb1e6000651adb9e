//! Namespaces of one buildset that may read each other's services.
//!
//! The later node grants both directions, so that of two that are created at once at least one sees the other. A grant is
//! deleted with its namespace; one to a deleted namespace is harmless, because names are not reused.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use nodeyard_config::{ClusterLabel, PeerAccess};
use nodeyard_driver::{CreateOrder, Error, ErrorClass};

use super::{ClusterLink, KubernetesDriver};
use crate::api::escape;
use crate::body::rights;
use crate::buildset::{BUILDSET, Buildset, PEERS};
use crate::holder::HolderRef;
use crate::names;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";

/// Returns the buildset that may read the services of a node of the label, if any.
pub(super) fn open_to(label: &ClusterLabel, order: &CreateOrder) -> Option<Buildset> {
    match label.buildset_peer_access {
        PeerAccess::Services => Buildset::of(&order.request),
        PeerAccess::None => None,
    }
}

impl KubernetesDriver {
    pub(super) async fn grant_peers(
        &self,
        link: &ClusterLink,
        namespace: &str,
        buildset: &Buildset,
    ) -> Result<(), Error> {
        for peer in self.peers(link, namespace, buildset).await? {
            self.grant_access(link, namespace, &peer).await?;
            match self.grant_access(link, &peer, namespace).await {
                Err(error) if error.class() == ErrorClass::Retry => {
                    let there = self
                        .holders(link)
                        .get(&HolderRef::namespace(peer.as_str()))
                        .await?;
                    if there.is_some_and(|there| !there.deleting) {
                        return Err(error);
                    }
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Returns the other namespaces of a buildset, by name.
    pub(super) async fn peers(
        &self,
        link: &ClusterLink,
        namespace: &str,
        buildset: &Buildset,
    ) -> Result<Vec<String>, Error> {
        let system = names::label_value(self.options.owner.system.as_str());
        let buildset = buildset.as_str();
        let selector = format!("nodeyard_system_id={system},{BUILDSET}={buildset},{PEERS}");
        let query = format!("labelSelector={}", escape(&selector));
        let path = "/api/v1/namespaces";
        let found = link.api.list::<Namespace>("list namespaces", path, &query);
        let found = found.await?.into_iter();
        let staying = found.filter(|space| space.metadata.deletion_timestamp.is_none());
        let names = staying.map(|space| space.name_any());
        Ok(names.filter(|name| name != namespace).collect())
    }

    /// Lets the accounts of one namespace read the services of another.
    async fn grant_access(&self, link: &ClusterLink, at: &str, from: &str) -> Result<(), Error> {
        let (role, binding) = (rights::role_of_peers(), rights::binding_of_peer(from));
        let api = &link.api;
        api.ensure("create a role", &format!("{ROLES}/{at}/roles"), &role)
            .await?;
        let path = format!("{ROLES}/{at}/rolebindings");
        api.ensure("bind a role", &path, &binding).await
    }
}
