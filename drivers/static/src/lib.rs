//! `driver: static`: machines that exist already.
//!
//! The driver creates and deletes nothing. It knows the slots that the configuration lists, and checks whether a machine
//! is reachable and has the expected host keys.

mod kind;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::{Static, StaticNode, StaticPool};
use nodeyard_driver::{Driver, Error, Identity, Place, Roster, Sighting};
use nodeyard_model::{Label, PoolName, ProviderName};
use nodeyard_nodescan::{self as nodescan, ScanTarget, Scanner};
use tokio::net::lookup_host;
use tokio::time::timeout;

pub use kind::StaticKind;

pub struct StaticDriver {
    provider: ProviderName,
    slots: Vec<Place>,
    machines: HashMap<Identity, Machine>,
    scanner: Arc<dyn Scanner>,
}

/// How to check a machine.
#[derive(Debug)]
struct Machine {
    timeout: Duration,
    /// Whether it is contacted at all.
    checked: bool,
    /// Keys that a scan must find. Without checks, they are taken as its keys.
    expected_keys: Vec<Box<str>>,
}

impl StaticDriver {
    pub fn new(provider: ProviderName, section: &Static, scanner: Arc<dyn Scanner>) -> Self {
        let mut all_slots = Vec::new();
        let mut machines = HashMap::new();
        for pool in &section.pools {
            for node in &pool.nodes {
                let identity = identity(node);
                // The validation of the configuration reports a second entry of the same machine; the first counts.
                if machines.contains_key(&identity) {
                    continue;
                }
                let machine = Machine {
                    timeout: *node.timeout,
                    checked: node.host_key_checking,
                    expected_keys: expected_keys(node),
                };
                machines.insert(identity.clone(), machine);
                all_slots.extend(slots(pool, node, &identity));
            }
        }
        Self {
            provider,
            slots: all_slots,
            machines,
            scanner,
        }
    }

    fn machine(&self, identity: &Identity) -> Result<&Machine, Error> {
        self.machines.get(identity).ok_or_else(|| {
            Error::permanent(format!("machine {identity} is not in the configuration"))
        })
    }
}

impl fmt::Debug for StaticDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.machines.keys()).finish()
    }
}

impl Driver for StaticDriver {
    fn roster(&self) -> Option<&dyn Roster> {
        Some(self)
    }
}

#[async_trait]
impl Roster for StaticDriver {
    fn places(&self) -> &[Place] {
        &self.slots
    }

    async fn inspect(&self, place: &Place) -> Result<Sighting, Error> {
        let machine = self.machine(&place.machine)?;
        let target = ScanTarget {
            provider: self.provider.as_str().into(),
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
                sighting.host_keys.clone_from(&machine.expected_keys);
            }
            return Ok(sighting);
        }
        let scan = self.scanner.scan(&target).await;
        let scan = scan.map_err(|cause| {
            Error::retry(format!("failed to check machine {}", place.machine)).because(cause)
        })?;
        if target.has_host_keys() {
            sighting.host_keys = scan.keys.iter().map(|key| key.as_str().into()).collect();
            let missing = machine
                .expected_keys
                .iter()
                .find(|key| !sighting.host_keys.contains(key));
            if missing.is_some() {
                return Err(Error::permanent(format!(
                    "machine {} lacks an expected host key; check `host-key`, and which machine has this address",
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

fn identity(node: &StaticNode) -> Identity {
    Identity {
        name: node.name.as_str().into(),
        username: node.username.as_str().into(),
        port: node.connection_port.0,
    }
}

fn expected_keys(node: &StaticNode) -> Vec<Box<str>> {
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
            expected_keys(node)
        } else {
            Vec::new()
        },
    })
}

/// Resolves the addresses of a machine.
async fn addresses(machine: &Identity, limit: Duration) -> (Option<Box<str>>, Option<Box<str>>) {
    let lookup = lookup_host((&*machine.name, machine.port));
    let Ok(Ok(found)) = timeout(limit, lookup).await else {
        return (None, None);
    };
    let (v4, v6): (Vec<_>, Vec<_>) = found.map(|address| address.ip()).partition(IpAddr::is_ipv4);
    let first = |ips: &[IpAddr]| ips.first().map(|ip| ip.to_string().into_boxed_str());
    let v4 = first(&v4);
    // Nodepool has one address for each machine.
    let v6 = if v4.is_some() { None } else { first(&v6) };
    (v4, v6)
}
