//! Ports of a gateway: each SSH pod behind one has a port of its own.
//!
//! A port is reserved by a lease that is named after it, so that no other launcher or provider gets the same. The lease
//! carries the tags of its node and is deleted with the node.

use nodeyard_config::{Expose, Gateway, SshAccess};
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_model::NodeId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ClusterLink, KubernetesDriver};
use crate::api::{CreateOutcome, DeleteOptions, escape};
use crate::holder::selector;
use crate::names;

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

#[derive(Deserialize)]
struct PortLease {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
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
        node: NodeId,
        ssh: &SshAccess,
        namespace: &str,
        service: &str,
    ) -> Result<Option<(String, u16)>, Error> {
        let (Some(gateway), Some(range)) = (&ssh.gateway, ssh.port_range.as_deref()) else {
            return Err(Error::permanent(
                "`expose: gateway` needs `gateway` and `port-range`",
            ));
        };
        let [first, last] = range else {
            return Err(Error::permanent("`port-range` is a first and a last port"));
        };
        let port = self.reserve(link, node, gateway, first.0..=last.0).await?;
        let mut parent =
            json!({"name": gateway.name, "namespace": namespace_of(gateway), "port": port});
        if let Some(section) = &gateway.section {
            crate::api::put(&mut parent, "sectionName", section.as_str().into());
        }
        let route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1alpha2",
            "kind": "TCPRoute",
            "metadata": {"name": service},
            "spec": {
                "parentRefs": [parent],
                "rules": [{"backendRefs": [{"name": service, "port": ssh.port.0}]}],
            },
        });
        let path = format!("{GATEWAYS}/v1alpha2/namespaces/{namespace}/tcproutes");
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
        ports: std::ops::RangeInclusive<u16>,
    ) -> Result<u16, Error> {
        if let Some(port) = self
            .leases(link, node, gateway)
            .await?
            .pop()
            .and_then(|name| port_of(&name))
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
                "metadata": {"name": lease_name(gateway, port), "labels": labels},
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
    ) -> Result<Vec<String>, Error> {
        let selector = format!("{},nodepool_node_id={node}", selector(&self.options.owner));
        let path = format!("{LEASES}/{}/leases", namespace_of(gateway));
        let query = format!("labelSelector={}", escape(&selector));
        let leases = link
            .api
            .list::<PortLease>("list ports of a gateway", &path, &query)
            .await?;
        let prefix = format!("nodeyard-{}-", gateway.name);
        let names = leases.into_iter().map(|lease| lease.metadata.name);
        Ok(names.filter(|name| name.starts_with(&prefix)).collect())
    }

    /// Releases the ports that a deleted node had reserved.
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
            for name in self.leases(link, node, gateway).await? {
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
}

fn port_of(lease: &str) -> Option<u16> {
    lease.rsplit('-').next()?.parse().ok()
}
