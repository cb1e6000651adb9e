//! Which of its addresses a server is reached at, as openstacksdk chooses.
//!
//! One thing is left out: of several addresses of one kind, openstacksdk takes the first that answers on port 22 within
//! some seconds. The first is taken here; waiting for an answer is the launcher's part.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use nodeyard_openstack::{Address, CloudSettings, Server};

use crate::networks::Networks;

/// The addresses of a server by what they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerAddresses {
    pub(crate) public_v4: Option<Box<str>>,
    pub(crate) public_v6: Option<Box<str>>,
    pub(crate) private_v4: Option<Box<str>>,
    /// Where to connect to.
    pub(crate) interface: Option<Box<str>>,
}

/// What the choice depends on besides the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressChoice<'c> {
    pub(crate) settings: &'c CloudSettings,
    pub(crate) networks: &'c Networks,
    /// Whether this host has an IPv6 address of its own.
    pub(crate) local_ipv6: bool,
}

impl AddressChoice<'_> {
    pub(crate) fn of(self, server: &Server) -> ServerAddresses {
        let public_v4 = self.public_v4(server);
        let public_v6 = self.public_v6(server);
        let private_v4 = self.private_v4(server);
        let reachable_v6 = public_v6.as_ref().filter(|_| self.uses_v6());
        let interface = self
            .on_default_network(server)
            .or_else(|| private_v4.clone().filter(|_| self.settings.private))
            .or_else(|| reachable_v6.cloned())
            .or_else(|| public_v4.clone());
        ServerAddresses {
            public_v4,
            public_v6,
            private_v4,
            interface,
        }
    }

    fn uses_v6(self) -> bool {
        self.local_ipv6 && !self.settings.force_ipv4
    }

    fn public_v4(self, server: &Server) -> Option<Box<str>> {
        if !self.settings.use_external_network {
            return None;
        }
        let addresses = &server.addresses;
        let external = self.networks.external_v4.iter();
        said(server.access_ipv4.as_deref())
            .or_else(|| {
                external
                    .into_iter()
                    .find_map(|name| first(on(addresses, name), 4))
            })
            .or_else(|| first(all(addresses).filter(|address| address.is_floating()), 4))
            .or_else(|| first(on(addresses, "public"), 4))
            .or_else(|| {
                all(addresses)
                    .map(|a| &a.addr)
                    .find(|addr| is_global_v4(addr))
                    .cloned()
            })
    }

    fn public_v6(self, server: &Server) -> Option<Box<str>> {
        if self.settings.force_ipv4 {
            return None;
        }
        said(server.access_ipv6.as_deref()).or_else(|| first(all(&server.addresses), 6))
    }

    fn private_v4(self, server: &Server) -> Option<Box<str>> {
        if !self.settings.use_internal_network {
            return None;
        }
        let addresses = &server.addresses;
        // Of several, the one that the floating IP leads to.
        let behind = all(addresses).find(|a| a.version == 4 && a.is_floating());
        let behind = behind.and_then(|address| address.mac.as_ref());
        let same_port =
            |address: &&Address| behind.is_none_or(|mac| address.mac.as_ref() == Some(mac));
        let internal = || self.networks.internal_v4.iter().map(|name| &**name);
        let fixed = |name| {
            first(
                on(addresses, name)
                    .filter(same_port)
                    .filter(|a| a.is_fixed()),
                4,
            )
        };
        let any = |name| first(on(addresses, name).filter(same_port), 4);
        internal()
            .find_map(fixed)
            .or_else(|| internal().find_map(any))
            .or_else(|| fixed("private"))
            .or_else(|| first(on(addresses, "private"), 4))
    }

    fn on_default_network(self, server: &Server) -> Option<Box<str>> {
        let name = self.networks.default.as_ref()?;
        let v6 = || first(on(&server.addresses, name), 6).filter(|_| self.uses_v6());
        v6().or_else(|| first(on(&server.addresses, name), 4))
    }
}

/// Whether it has no address outside of the cloud and could get one.
pub(crate) fn lacks_public_address(server: &Server, chosen: &ServerAddresses) -> bool {
    let has = |is: fn(&Address) -> bool| all(&server.addresses).any(is);
    chosen.public_v4.is_none()
        && !has(Address::is_floating)
        && (chosen.private_v4.is_some() || has(Address::is_fixed))
}

/// Whether this host has an IPv6 address that is good for more than its own link.
pub(crate) fn host_has_ipv6() -> bool {
    // Address, interface, length of the prefix, scope, flags, name; scope 0 is global.
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    table
        .lines()
        .any(|line| line.split_whitespace().nth(3) == Some("00"))
}

type Addresses = BTreeMap<String, Vec<Address>>;

fn all(addresses: &Addresses) -> impl Iterator<Item = &Address> {
    addresses.values().flatten()
}

fn on<'a>(addresses: &'a Addresses, network: &str) -> impl Iterator<Item = &'a Address> + use<'a> {
    addresses.get(network).into_iter().flatten()
}

/// Floating ones go before others.
fn first<'a>(addresses: impl Iterator<Item = &'a Address>, version: u8) -> Option<Box<str>> {
    let addresses = addresses.filter(|address| address.version == version);
    let chosen = addresses.min_by_key(|address| !address.is_floating())?;
    Some(chosen.addr.clone())
}

fn said(text: Option<&str>) -> Option<Box<str>> {
    text.filter(|text| !text.is_empty()).map(Into::into)
}

fn is_global_v4(text: &str) -> bool {
    let Ok(address) = text.parse::<Ipv4Addr>() else {
        return false;
    };
    let [a, b, ..] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let reserved = a == 0 || a >= 240 || (a == 198 && (b == 18 || b == 19));
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_broadcast()
        || shared
        || reserved)
}

#[cfg(test)]
mod tests;
