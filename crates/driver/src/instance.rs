//! A machine that is up.

use nodeyard_model::{ConnectionPort, Opaque, Resources};
use serde::{Deserialize, Serialize};

use crate::ids::ExternalId;

/// A machine as the cloud describes it. Where a field is None, the configuration decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub external_id: ExternalId,
    pub public_ipv4: Option<Box<str>>,
    pub public_ipv6: Option<Box<str>>,
    pub private_ipv4: Option<Box<str>>,
    /// Where to connect to, unless the configuration prefers the private address.
    pub interface_ip: Option<Box<str>>,
    pub cloud: Option<Box<str>>,
    pub region: Option<Box<str>>,
    pub az: Option<Box<str>>,
    pub host_id: Option<Box<str>>,
    pub connection_type: Option<Box<str>>,
    pub connection_port: Option<ConnectionPort>,
    pub username: Option<Box<str>>,
    pub python_path: Option<Box<str>>,
    pub shell_type: Option<Box<str>>,
    /// `<type> <base64>` each, if the cloud knows them; otherwise they are scanned.
    pub host_keys: Vec<Box<str>>,
    pub resources: Resources,
    /// Null, or an object.
    pub node_properties: Opaque,
    /// Null, or an object. Attributes of the pool override these.
    pub attributes: Opaque,
    /// The number of the slot on a shared machine.
    pub slot: Option<i64>,
    pub driver_data: Opaque,
}

impl Instance {
    pub fn new(external_id: ExternalId, resources: Resources) -> Self {
        Self {
            external_id,
            resources,
            public_ipv4: None,
            public_ipv6: None,
            private_ipv4: None,
            interface_ip: None,
            cloud: None,
            region: None,
            az: None,
            host_id: None,
            connection_type: None,
            connection_port: None,
            username: None,
            python_path: None,
            shell_type: None,
            host_keys: Vec::new(),
            node_properties: Opaque::NULL,
            attributes: Opaque::NULL,
            slot: None,
            driver_data: Opaque::NULL,
        }
    }
}
