//! Flavors, networks and zones.

use serde::{Deserialize, Serialize};

use super::random::Random;
use super::{Cloud, CloudError, Reply};
use crate::simulate::{FlavorOptions, Simulate};

/// Networks that always exist. Their names determine the addresses of servers.
const NETWORKS: [(&str, Addressing); 5] = [
    ("fake-public-network-name", Addressing::Public),
    ("fake-private-network-name", Addressing::Public),
    ("no-auto-ip-network-name", Addressing::Private),
    ("fake-ipv6-network-name", Addressing::PublicV6),
    ("fake-nat-network-name", Addressing::Nat),
];

/// The addresses that a server on a network gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressing {
    Public,
    PublicV6,
    Private,
    /// A private one, and a public one when a floating IP is attached.
    Nat,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Flavor {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) ram: u64,
    pub(super) vcpus: u64,
    pub(super) disk: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Network {
    pub(super) id: String,
    pub(super) name: String,
    status: &'static str,
    /// Whether its servers can have floating IPs.
    pub(super) nat_destination: bool,
    #[serde(skip)]
    pub(super) addressing: Addressing,
}

#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) flavors: Vec<Flavor>,
    pub(super) networks: Vec<Network>,
    pub(super) zones: Vec<String>,
}

impl Catalog {
    pub(super) fn new(options: &Simulate, random: &mut Random) -> Self {
        let default = ["Fake Flavor", "Unreal Flavor"].map(|name| FlavorOptions {
            name: name.to_owned(),
            ram: 8192,
            vcpus: 4,
            disk: 40,
        });
        let flavors = if options.flavors.is_empty() {
            &default[..]
        } else {
            &options.flavors
        };
        let flavors = flavors
            .iter()
            .map(|flavor| Flavor {
                id: random.id(),
                name: flavor.name.clone(),
                ram: flavor.ram,
                vcpus: flavor.vcpus,
                disk: flavor.disk,
            })
            .collect();
        let named = options
            .networks
            .iter()
            .filter(|name| NETWORKS.iter().all(|(known, _)| known != name))
            .map(|name| (name.as_str(), Addressing::Public));
        let networks = named
            .chain(NETWORKS)
            .map(|(name, addressing)| Network {
                id: random.id(),
                name: name.to_owned(),
                status: "ACTIVE",
                nat_destination: addressing == Addressing::Nat,
                addressing,
            })
            .collect();
        let zones = if options.zones.is_empty() {
            vec!["az1".to_owned(), "az2".to_owned()]
        } else {
            options.zones.clone()
        };
        Self {
            flavors,
            networks,
            zones,
        }
    }

    pub(super) fn flavor(&self, name_or_id: &str) -> Option<&Flavor> {
        self.flavors
            .iter()
            .find(|flavor| flavor.id == name_or_id || flavor.name == name_or_id)
    }

    pub(super) fn network(&self, name_or_id: &str) -> Option<&Network> {
        self.networks
            .iter()
            .find(|network| network.id == name_or_id || network.name == name_or_id)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ByNameOrId {
    pub(super) name_or_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ById {
    pub(super) id: String,
}

impl Cloud {
    pub(super) fn get_network(&self, wanted: &ByNameOrId) -> Result<Reply, CloudError> {
        Reply::now(&self.catalog.network(&wanted.name_or_id))
    }
}
