//! The request body that describes a new container.

use std::collections::BTreeMap;

use nodeyard_driver::{CreateOrder, Error};
use serde_json::{Map, Value, json};

use super::{CORES_LABEL, ContainerDriver, RAM_LABEL};
use crate::options::{ContainerAccess, ContainerLabelOptions};
use crate::runtime_info::required_ulimits;

impl ContainerDriver {
    pub(super) async fn container_spec(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
        image: &str,
    ) -> Result<Value, Error> {
        let mut labels = Map::new();
        for (key, value) in order.tags.to_metadata() {
            labels.insert(key.to_owned(), value.into());
        }
        labels.insert(
            CORES_LABEL.to_owned(),
            label.cpus.unwrap_or(0.0).to_string().into(),
        );
        labels.insert(
            RAM_LABEL.to_owned(),
            label.memory.unwrap_or(0).to_string().into(),
        );
        let env = label
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let mut body = json!({
            "Image": image,
            "Hostname": order.hostname(),
            "Labels": labels,
            "Env": env.collect::<Vec<_>>(),
            "HostConfig": self.host_config(label),
        });
        let mut put = |key: &str, value: Value| body.as_object_mut()?.insert(key.to_owned(), value);
        if let Some(command) = self.command(label, image).await? {
            put("Cmd", command.into());
        }
        if self.publishes_port(label) {
            put("ExposedPorts", json!({port_key(label): {}}));
        }
        Ok(body)
    }

    fn publishes_port(&self, label: &ContainerLabelOptions) -> bool {
        label.access == ContainerAccess::Ssh && !self.options.shares_host_network()
    }

    fn host_config(&self, label: &ContainerLabelOptions) -> Value {
        let mut host = Map::new();
        let mut put = |key: &str, value: Value| host.insert(key.to_owned(), value);
        if let Some(network) = &self.options.network {
            put("NetworkMode", (&**network).into());
        }
        if self.publishes_port(label) {
            // Without a number, the runtime chooses a free port.
            let binding = json!([{"HostIp": self.options.publish_address, "HostPort": ""}]);
            put("PortBindings", json!({port_key(label): binding}));
        }
        if let Some(cpus) = label.cpus {
            put("NanoCpus", ((cpus * 1e9).round() as i64).into());
        }
        if let Some(memory) = label.memory {
            let bytes = memory.saturating_mul(1 << 20);
            put("Memory", bytes.into());
            // The sum of memory and swap, so that there is no swap.
            put("MemorySwap", bytes.into());
        }
        if let Some(processes) = label.processes {
            put("PidsLimit", processes.into());
        }
        if !label.volumes.is_empty() {
            put("Binds", label.volumes.clone().into());
        }
        if label.privileged {
            put("Privileged", true.into());
        }
        let mut ulimits: BTreeMap<&str, u64> = required_ulimits().collect();
        ulimits.extend(
            label
                .ulimits
                .iter()
                .map(|(name, limit)| (name.as_str(), *limit)),
        );
        let ulimits: Vec<_> = ulimits
            .iter()
            .map(|(name, limit)| json!({"Name": name, "Soft": limit, "Hard": limit}))
            .collect();
        if !ulimits.is_empty() {
            put("Ulimits", ulimits.into());
        }
        host.into()
    }

    /// Returns the command of the label, or None for that of the image. An image without a command, such as an imported
    /// root file system, gets one that makes the container reachable.
    async fn command(
        &self,
        label: &ContainerLabelOptions,
        image: &str,
    ) -> Result<Option<Vec<String>>, Error> {
        if label.command.is_some() {
            return Ok(label.command.clone());
        }
        let config = self.client.image_config(image).await?.ok_or_else(|| {
            Error::permanent(format!(
                "label {}: image {image} no longer exists in the container runtime",
                label.name
            ))
        })?;
        if config.has_command() {
            return Ok(None);
        }
        let script = match label.access {
            // An init system would create the directory.
            ContainerAccess::Ssh => format!(
                "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -p {}",
                label.ssh_port
            ),
            ContainerAccess::Exec => {
                "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done".to_owned()
            }
        };
        Ok(Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), script]))
    }
}

fn port_key(label: &ContainerLabelOptions) -> String {
    format!("{}/tcp", label.ssh_port)
}
