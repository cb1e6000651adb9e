//! Ports of a gateway: each SSH pod behind one has a port of its own.
//!
//! A port is reserved by a lease that is named after it, so that no other launcher or provider gets the same. The lease
//! carries the tags of its node and names the route of the port; it is deleted after the node and the route.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use nodeyard_config::{Expose, Gateway, SshAccess};
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_model::NodeId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::namespace::{NodeNamespace, set_owning_pod};
use super::{ClusterLink, KubernetesDriver};
use crate::api::{CreateOutcome, DeleteOptions, escape};
use crate::holder::{HolderKind, selector};
use crate::{names, ports};

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";
/// The annotation of a lease with the route of its port, `<namespace>/<name>`.
const ROUTE: &str = "nodeyard/route";

#[derive(Deserialize)]
struct PortLease {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The namespace of a gateway; the configuration requires one.
fn namespace_of(gateway: &Gateway) -> &str {
    gateway.namespace.as_deref().unwrap_or("default")
}

fn lease_name(gateway: &Gateway, port: u16) -> String {
    format!("nodeyard-{}-{port}", gateway.name)
}

impl KubernetesDriver {
    /// Routes a port of the gateway to the service, and returns its address. None while the gateway has none.
    pub(super) async fn route_through_gateway(
        &self,
        link: &ClusterLink,
        ssh: &SshAccess,
        space: &NodeNamespace,
        service: &str,
        pod: &Pod,
    ) -> Result<Option<(String, u16)>, Error> {
        let namespace = space.namespace.as_str();
        let (Some(gateway), Some(range)) = (&ssh.gateway, ssh.port_range.as_deref()) else {
            return Err(Error::permanent(
                "`expose: gateway` needs `gateway` and `port-range`",
            ));
        };
        let [first, last] = range else {
            return Err(Error::permanent("`port-range` is a first and a last port"));
        };
        let ports = ports::in_order(first.0..=last.0, space.node);
        let name = format!("{namespace}/{service}");
        let port = self
            .reserve(link, space.node, gateway, ports, &name)
            .await?;
        let mut parent =
            json!({"name": gateway.name, "namespace": namespace_of(gateway), "port": port});
        if let Some(section) = &gateway.section {
            crate::api::put(&mut parent, "sectionName", section.as_str().into());
        }
        let mut route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1alpha2",
            "kind": "TCPRoute",
            "metadata": {"name": service},
            "spec": {
                "parentRefs": [parent],
                "rules": [{"backendRefs": [{"name": service, "port": ssh.port.0}]}],
            },
        });
        if self.options.holder == HolderKind::Pod {
            let uid = pod.metadata.uid.as_deref();
            set_owning_pod(&mut route, space.pod.as_deref().unwrap_or_default(), uid);
        } else {
            space.own(&mut route);
        }
        let path = routes(namespace);
        link.api.ensure("create a route", &path, &route).await?;
        let path = format!(
            "{GATEWAYS}/v1/namespaces/{}/gateways/{}",
            namespace_of(gateway),
            gateway.name
        );
        let found = link.api.get::<Value>("read a gateway", &path).await?;
        let found = found.ok_or_else(|| {
            Error::permanent(format!(
                "gateway {} does not exist in namespace {}",
                gateway.name,
                namespace_of(gateway)
            ))
        })?;
        let address = found
            .pointer("/status/addresses/0/value")
            .and_then(Value::as_str);
        Ok(address.map(|address| (address.to_owned(), port)))
    }

    async fn reserve(
        &self,
        link: &ClusterLink,
        node: NodeId,
        gateway: &Gateway,
        ports: impl Iterator<Item = u16> + Send,
        route: &str,
    ) -> Result<u16, Error> {
        if let Some(port) = self
            .leases(link, node, gateway)
            .await?
            .pop()
            .and_then(|lease| port_of(&lease.metadata.name))
        {
            return Ok(port);
        }
        let path = format!("{LEASES}/{}/leases", namespace_of(gateway));
        let owner = &self.options.owner;
        let mut labels = Map::new();
        for (key, value) in owner.node_tags(node, "".into()).to_metadata() {
            labels.insert(key.to_owned(), names::label_value(&value).into());
        }
        let reserve = async |port: u16| {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": lease_name(gateway, port),
                    "labels": labels,
                    "annotations": {ROUTE: route},
                },
                "spec": {"holderIdentity": format!("{}/{node}", owner.provider)},
            });
            let made = link
                .api
                .create::<PortLease>("reserve a port of a gateway", &path, &lease)
                .await?;
            Ok::<_, Error>(matches!(made, CreateOutcome::New(_)))
        };
        for port in ports {
            if reserve(port).await? {
                return Ok(port);
            }
        }
        Err(Error::new(
            ErrorClass::Capacity,
            format!(
                "all ports of gateway {} are in use; extend `port-range`",
                gateway.name
            ),
        ))
    }

    async fn leases(
        &self,
        link: &ClusterLink,
        node: NodeId,
        gateway: &Gateway,
    ) -> Result<Vec<PortLease>, Error> {
        let selector = format!("{},nodepool_node_id={node}", selector(&self.options.owner));
        let path = format!("{LEASES}/{}/leases", namespace_of(gateway));
        let query = format!("labelSelector={}", escape(&selector));
        let mut leases = link
            .api
            .list::<PortLease>("list ports of a gateway", &path, &query)
            .await?;
        let prefix = format!("nodeyard-{}-", gateway.name);
        leases.retain(|lease| lease.metadata.name.starts_with(&prefix));
        Ok(leases)
    }

    /// Releases the ports that a deleted node had reserved, after their routes have gone.
    pub(super) async fn release_ports(
        &self,
        link: &ClusterLink,
        node: NodeId,
    ) -> Result<(), Error> {
        let labels = self.options.pools.iter().flat_map(|pool| &pool.labels);
        let ssh = labels.filter_map(|label| label.ssh.as_ref());
        let exposed = ssh.filter(|ssh| ssh.expose == Expose::Gateway);
        let mut gateways: Vec<&Gateway> = exposed.filter_map(|ssh| ssh.gateway.as_ref()).collect();
        gateways.dedup();
        for gateway in gateways {
            for lease in self.leases(link, node, gateway).await? {
                let Metadata { name, annotations } = lease.metadata;
                let route = annotations.get(ROUTE);
                if let Some((namespace, route)) = route.and_then(|route| route.split_once('/')) {
                    self.delete_route(link, namespace, route).await?;
                }
                let path = format!("{LEASES}/{}/leases/{name}", namespace_of(gateway));
                link.api
                    .delete(
                        "release a port of a gateway",
                        &path,
                        &DeleteOptions::default(),
                    )
                    .await?;
            }
        }
        Ok(())
    }

    /// Deletes a route that was not deleted with its node yet. Fails if it still exists after that.
    async fn delete_route(
        &self,
        link: &ClusterLink,
        namespace: &str,
        name: &str,
    ) -> Result<(), Error> {
        let path = format!("{}/{name}", routes(namespace));
        // A project that was deleted may not be read.
        let read = || link.api.get_own::<IgnoredAny>("read a route", &path);
        if read().await?.is_none() {
            return Ok(());
        }
        let options = DeleteOptions::default();
        link.api.delete("delete a route", &path, &options).await?;
        match read().await? {
            None => Ok(()),
            Some(_) => Err(Error::retry(format!(
                "route {name} in {namespace} still exists after it was deleted; its port is not released yet"
            ))),
        }
    }
}

fn routes(namespace: &str) -> String {
    format!("{GATEWAYS}/v1alpha2/namespaces/{namespace}/tcproutes")
}

fn port_of(lease: &str) -> Option<u16> {
    lease.rsplit('-').next()?.parse().ok()
}
