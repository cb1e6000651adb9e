//! Ports of a gateway: each SSH pod behind one has a port of its own.
//!
//! A port is taken by a lease that is named after it, so that nobody else, no other launcher and no other provider, gets
//! the same. It carries the tags of its node and is given back when the node is gone.

use nodeyard_config::{Expose, Gateway, SshAccess};
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_model::NodeId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{KubernetesDriver, Link};
use crate::api::{Made, Removal, escape};
use crate::holder::selector;
use crate::names;

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

#[derive(Deserialize)]
struct Lease {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Where a gateway is; one without a namespace is refused before.
fn space(gateway: &Gateway) -> &str {
    gateway.namespace.as_deref().unwrap_or("default")
}

fn lease_name(gateway: &Gateway, port: u16) -> String {
    format!("nodeyard-{}-{port}", gateway.name)
}

impl KubernetesDriver {
    /// Leads a port of the gateway to the service, and says where that is. None as long as the gateway has no address.
    pub(super) async fn lead_through(
        &self,
        link: &Link,
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
        let mut parent = json!({"name": gateway.name, "namespace": space(gateway), "port": port});
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
        link.api.ensure("make a route", &path, &route).await?;
        let path = format!(
            "{GATEWAYS}/v1/namespaces/{}/gateways/{}",
            space(gateway),
            gateway.name
        );
        let found = link.api.get::<Value>("look at a gateway", &path).await?;
        let found = found.ok_or_else(|| {
            Error::permanent(format!(
                "there is no gateway {} in {}",
                gateway.name,
                space(gateway)
            ))
        })?;
        let address = found
            .pointer("/status/addresses/0/value")
            .and_then(Value::as_str);
        Ok(address.map(|address| (address.to_owned(), port)))
    }

    async fn reserve(
        &self,
        link: &Link,
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
        let path = format!("{LEASES}/{}/leases", space(gateway));
        let owner = &self.options.owner;
        let mut labels = Map::new();
        for (key, value) in owner.node_tags(node, "".into()).to_metadata() {
            labels.insert(key.to_owned(), names::label_value(&value).into());
        }
        let taken = async |port: u16| {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": lease_name(gateway, port), "labels": labels},
                "spec": {"holderIdentity": format!("{}/{node}", owner.provider)},
            });
            let made = link
                .api
                .create::<Lease>("take a port of a gateway", &path, &lease)
                .await?;
            Ok::<_, Error>(matches!(made, Made::New(_)))
        };
        for port in ports {
            if taken(port).await? {
                return Ok(port);
            }
        }
        Err(Error::new(
            ErrorClass::Capacity,
            format!(
                "all ports of gateway {} are taken; extend `port-range`",
                gateway.name
            ),
        ))
    }

    async fn leases(
        &self,
        link: &Link,
        node: NodeId,
        gateway: &Gateway,
    ) -> Result<Vec<String>, Error> {
        let selector = format!("{},nodepool_node_id={node}", selector(&self.options.owner));
        let path = format!("{LEASES}/{}/leases", space(gateway));
        let query = format!("labelSelector={}", escape(&selector));
        let leases = link
            .api
            .list::<Lease>("list ports of a gateway", &path, &query)
            .await?;
        let prefix = format!("nodeyard-{}-", gateway.name);
        let names = leases.into_iter().map(|lease| lease.metadata.name);
        Ok(names.filter(|name| name.starts_with(&prefix)).collect())
    }

    /// Gives back what a node that has gone had taken.
    pub(super) async fn release_ports(&self, link: &Link, node: NodeId) -> Result<(), Error> {
        let labels = self.options.pools.iter().flat_map(|pool| &pool.labels);
        let ssh = labels.filter_map(|label| label.ssh.as_ref());
        let exposed = ssh.filter(|ssh| ssh.expose == Expose::Gateway);
        let mut gateways: Vec<&Gateway> = exposed.filter_map(|ssh| ssh.gateway.as_ref()).collect();
        gateways.dedup();
        for gateway in gateways {
            for name in self.leases(link, node, gateway).await? {
                let path = format!("{LEASES}/{}/leases/{name}", space(gateway));
                link.api
                    .delete("give back a port of a gateway", &path, &Removal::default())
                    .await?;
            }
        }
        Ok(())
    }
}

fn port_of(lease: &str) -> Option<u16> {
    lease.rsplit('-').next()?.parse().ok()
}
