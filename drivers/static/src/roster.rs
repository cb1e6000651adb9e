//! The machines of the configuration, and how to look at one.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::{Static, StaticNode, StaticPool};
use nodeyard_driver::{Error, Identity, Place, Roster, Sighting};
use nodeyard_model::{Label, PoolName};
use nodeyard_nodescan::{self as nodescan, ScanTarget, Scanner};
use tokio::net::lookup_host;
use tokio::time::timeout;

pub(crate) struct Machines {
    places: Vec<Place>,
    machines: HashMap<Identity, Machine>,
    scanner: Arc<dyn Scanner>,
}

/// How to look at a machine.
#[derive(Debug)]
struct Machine {
    timeout: Duration,
    /// Whether it is contacted at all.
    checked: bool,
    /// Keys it must show; without a check, those it is believed to have.
    expected: Vec<Box<str>>,
}

impl fmt::Debug for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.machines.keys()).finish()
    }
}

impl Machines {
    pub(crate) fn new(section: &Static, scanner: Arc<dyn Scanner>) -> Self {
        let mut places = Vec::new();
        let mut machines = HashMap::new();
        for pool in &section.pools {
            for node in &pool.nodes {
                let identity = identity(node);
                let machine = Machine {
                    timeout: *node.timeout,
                    checked: node.host_key_checking,
                    expected: expected(node),
                };
                // The configuration calls a second entry of the same machine a mistake; the first counts.
                if machines.contains_key(&identity) {
                    continue;
                }
                machines.insert(identity.clone(), machine);
                places.extend(slots(pool, node, &identity));
            }
        }
        Self {
            places,
            machines,
            scanner,
        }
    }

    fn machine(&self, identity: &Identity) -> Result<&Machine, Error> {
        self.machines
            .get(identity)
            .ok_or_else(|| Error::permanent(format!("{identity} is not in the configuration")))
    }
}

fn identity(node: &StaticNode) -> Identity {
    Identity {
        name: node.name.as_str().into(),
        username: node.username.as_str().into(),
        port: node.connection_port.0,
    }
}

fn expected(node: &StaticNode) -> Vec<Box<str>> {
    node.host_key.iter().map(|key| key.trim().into()).collect()
}

fn slots<'a>(
    pool: &'a StaticPool,
    node: &'a StaticNode,
    identity: &'a Identity,
) -> impl Iterator<Item = Place> + 'a {
    let slots = i64::try_from(node.max_parallel_jobs).unwrap_or(i64::MAX);
    (0..slots).map(|slot| Place {
        pool: PoolName::new(pool.common.name.as_str()),
        machine: identity.clone(),
        slot,
        labels: node
            .labels
            .iter()
            .map(|label| Label::new(label.as_str()))
            .collect(),
        connection_type: node.connection_type.as_str().into(),
        shell_type: node.shell_type.as_deref().map(Into::into),
        python_path: node.python_path.as_str().into(),
        host_keys: if nodescan::has_host_keys(&node.connection_type) {
            expected(node)
        } else {
            Vec::new()
        },
    })
}

#[async_trait]
impl Roster for Machines {
    fn places(&self) -> &[Place] {
        &self.places
    }

    async fn inspect(&self, place: &Place) -> Result<Sighting, Error> {
        let machine = self.machine(&place.machine)?;
        let target = ScanTarget {
            address: place.machine.name.clone(),
            port: place.machine.port,
            connection_type: place.connection_type.clone(),
            timeout: machine.timeout,
        };
        let (public_ipv4, public_ipv6) = addresses(&place.machine, machine.timeout).await;
        let mut sighting = Sighting {
            host_keys: Vec::new(),
            public_ipv4,
            public_ipv6,
        };
        if !machine.checked {
            if target.has_host_keys() {
                sighting.host_keys.clone_from(&machine.expected);
            }
            return Ok(sighting);
        }
        let scan = self.scanner.scan(&target).await;
        let scan = scan.map_err(|cause| {
            Error::retry(format!("machine {} cannot be used", place.machine)).because(cause)
        })?;
        if target.has_host_keys() {
            sighting.host_keys = scan.keys.iter().map(|key| key.as_str().into()).collect();
            let missing = machine
                .expected
                .iter()
                .find(|key| !sighting.host_keys.contains(key));
            if missing.is_some() {
                return Err(Error::permanent(format!(
                    "machine {} does not show the host key that the configuration expects; check `host-key`, or \
                     who answers there",
                    place.machine
                )));
            }
        }
        Ok(sighting)
    }

    async fn is_alive(&self, identity: &Identity) -> bool {
        match self.machines.get(identity) {
            Some(machine) if machine.checked => {
                self.scanner
                    .is_reachable(&identity.name, identity.port, machine.timeout)
                    .await
            }
            Some(_) => true,
            None => false,
        }
    }
}

/// The machine's addresses, as far as its name leads to some.
async fn addresses(machine: &Identity, limit: Duration) -> (Option<Box<str>>, Option<Box<str>>) {
    let lookup = lookup_host((&*machine.name, machine.port));
    let Ok(Ok(found)) = timeout(limit, lookup).await else {
        return (None, None);
    };
    let (v4, v6): (Vec<_>, Vec<_>) = found.map(|address| address.ip()).partition(IpAddr::is_ipv4);
    let first = |ips: &[IpAddr]| ips.first().map(|ip| ip.to_string().into_boxed_str());
    let v4 = first(&v4);
    // Nodepool knows one address of a machine.
    let v6 = if v4.is_some() { None } else { first(&v6) };
    (v4, v6)
}
