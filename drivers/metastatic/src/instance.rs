//! The instance of a slot, made from its backing node.

use std::collections::BTreeMap;

use nodeyard_driver::backing::Placement;
use nodeyard_driver::{Error, Instance};
use nodeyard_model::{Node, NodeId, Opaque, Resources};
use serde::Serialize;

/// `driver_data` of a node, in the format of Nodepool.
#[derive(Debug, Serialize)]
struct DriverData {
    metadata: BTreeMap<&'static str, String>,
    node: NodeId,
    #[serde(flatten)]
    placement: Placement,
}

/// Returns the resources of a slot. It counts as one instance, whatever its share of the machine.
pub(crate) fn cost() -> Resources {
    Resources::new(0, 1, 0)
}

/// If `checked`, host keys are scanned instead of copied.
pub(crate) fn instance(
    node: NodeId,
    metadata: BTreeMap<&'static str, String>,
    placement: Placement,
    backing: &Node,
    checked: bool,
) -> Result<Instance, Error> {
    let data = DriverData {
        metadata,
        node,
        placement,
    };
    let driver_data = Opaque::encode(&data).map_err(|cause| {
        Error::permanent("failed to encode driver_data of a slot").because(cause)
    })?;
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(Into::into);
    Ok(Instance {
        public_ipv4: backing.public_ipv4.clone(),
        public_ipv6: backing.public_ipv6.clone(),
        private_ipv4: backing.private_ipv4.clone(),
        interface_ip: backing.interface_ip.clone(),
        cloud: text(&backing.cloud),
        region: text(&backing.region),
        az: text(&backing.az),
        connection_type: text(&backing.connection_type),
        connection_port: Some(backing.connection_port.clone()),
        username: text(&backing.username),
        python_path: text(&backing.python_path),
        shell_type: text(&backing.shell_type),
        host_keys: if checked {
            Vec::new()
        } else {
            backing.host_keys.clone()
        },
        attributes: backing.attributes.clone(),
        slot: Some(placement.slot.into()),
        driver_data,
        ..Instance::new(node.to_string().as_str().into(), cost())
    })
}
