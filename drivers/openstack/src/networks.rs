//! The roles of a cloud's networks: as clouds.yaml says, or as derived from their attributes.

use nodeyard_driver::Error;
use nodeyard_openstack::{CloudSettings, Net, NetworkSettings, Port};

use crate::failure::not_found;

/// The networks, sorted. Names are those by which servers list their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    pub(crate) all: Vec<Net>,
    /// Networks that lead out of the cloud.
    pub(crate) external_v4: Vec<Box<str>>,
    pub(crate) internal_v4: Vec<Box<str>>,
    /// The network over which machines are reached.
    pub(crate) default: Option<Box<str>>,
    /// The id of the network that floating IPs come from.
    pub(crate) nat_source: Option<Box<str>>,
    /// The id of the network that they lead to, if clouds.yaml names it.
    nat_destination: Option<Box<str>>,
}

impl Networks {
    pub(crate) fn new(settings: &CloudSettings, all: Vec<Net>) -> Result<Self, Error> {
        let configured = &settings.networks;
        let listed = |net: &Net, is: fn(&NetworkSettings) -> bool| {
            let mut of_net = configured.iter().filter(|entry| is(entry));
            of_net.any(|entry| entry.name == net.name || entry.name == net.id)
        };
        let named = |is: fn(&NetworkSettings) -> bool| -> Result<Option<&Net>, Error> {
            let Some(entry) = configured.iter().find(|entry| is(entry)) else {
                return Ok(None);
            };
            find(&all, &entry.name, "clouds.yaml").map(Some)
        };
        for entry in configured {
            find(&all, &entry.name, "clouds.yaml")?;
        }
        let outside = |net: &Net| net.external || net.physical.is_some();
        let is_external: fn(&NetworkSettings) -> bool = |entry| entry.routes_ipv4_externally;
        let is_internal: fn(&NetworkSettings) -> bool = |entry| !entry.routes_ipv4_externally;
        let names =
            |nets: &mut dyn Iterator<Item = &Net>| nets.map(|net| net.name.clone()).collect();
        let external_v4 =
            names(&mut all.iter().filter(|net| {
                listed(net, is_external) || (outside(net) && !listed(net, is_internal))
            }));
        let internal_v4 = names(&mut all.iter().filter(|net| {
            listed(net, is_internal) || (!outside(net) && !listed(net, is_external))
        }));
        let default = named(|entry| entry.default_interface)?.map(|net| net.name.clone());
        let nat_source = named(|entry| entry.nat_source)?.or(all.iter().find(|net| net.external));
        let nat_source = nat_source.map(|net| net.id.clone());
        let nat_destination = named(|entry| entry.nat_destination)?.map(|net| net.id.clone());
        Ok(Self {
            external_v4,
            internal_v4,
            default,
            nat_source,
            nat_destination,
            all,
        })
    }

    /// Finds a network by name or id.
    pub(crate) fn find(&self, wanted: &str, place: &str) -> Result<&Net, Error> {
        find(&self.all, wanted, place)
    }

    /// Returns the port of a server that a floating IP is attached to, and its address: the newest inside the cloud.
    pub(crate) fn nat_port<'p>(
        &self,
        ports: impl Iterator<Item = &'p Port>,
    ) -> Option<(&'p Port, &'p str)> {
        let is_inside = |port: &Port| match &self.nat_destination {
            Some(id) => port.network_id == *id,
            None => self
                .all
                .iter()
                .any(|net| net.id == port.network_id && !net.external),
        };
        let with_address = |port: &'p Port| {
            let mut addresses = port.fixed_ips.iter().map(|ip| &*ip.ip_address);
            let v4 = addresses.find(|address| address.parse::<std::net::Ipv4Addr>().is_ok())?;
            Some((port, v4))
        };
        ports
            .filter(|port| is_inside(port))
            .filter_map(with_address)
            .max_by(|(a, _), (b, _)| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)))
    }
}

fn find<'n>(all: &'n [Net], wanted: &str, place: &str) -> Result<&'n Net, Error> {
    let by_id = all.iter().find(|net| *net.id == *wanted);
    by_id
        .or_else(|| all.iter().find(|net| *net.name == *wanted))
        .ok_or_else(|| not_found(place, "network", wanted, all.iter().map(|net| &*net.name)))
}
