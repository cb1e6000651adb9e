//! Creates a container, starts it and waits until it can be logged in to.

use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, Progress};
use nodeyard_model::ConnectionPort;
use nodeyard_nodescan as nodescan;
use serde_json::Value;
use tokio::time::Instant;

use super::{ContainerDriver, cost};
use crate::client::{ContainerDetails, ContainerSummary};
use crate::options::{ContainerAccess, ContainerLabelOptions};

/// How many lines of its output explain why a container exited.
const LAST_LINES: u32 = 20;
/// A process that was ended by a signal has an exit code above this.
const SIGNALLED: i64 = 128;

impl ContainerDriver {
    pub(super) async fn create_container(
        &self,
        order: &CreateOrder,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let label = self.label(&order.pool, &order.label)?;
        self.info().await?.check(label)?;
        let container = self.find_or_make(order, label, progress).await?;
        progress.set_external_id(container.as_str());
        match self.bring_up(order, label, &container, progress).await {
            Err(error) if self.client.inspect(&container).await?.is_none() => {
                progress.clear_external_id();
                Err(removed(&container).because(error))
            }
            result => result,
        }
    }

    async fn find_or_make(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
        progress: &Progress,
    ) -> Result<String, Error> {
        if !order.first_attempt
            && let Some(container) = self.adopt(order).await?
        {
            return Ok(container);
        }
        let image = self.boot_image(order, label, progress).await?;
        let spec = self.container_spec(order, label, &image).await?;
        self.make(order, &spec).await
    }

    /// Takes over one usable container that an earlier call made for this order, and removes all others.
    async fn adopt(&self, order: &CreateOrder) -> Result<Option<String>, Error> {
        let owner = &self.options.owner;
        let timer = self.options.poll.start();
        loop {
            let mut containers = self.client.containers().await?;
            containers.retain(|container| owner.owns_node(&container.tags(), order.node));
            let usable = containers.iter().position(ContainerSummary::is_usable);
            let usable = usable.map(|index| containers.remove(index).id);
            if containers.is_empty() {
                return Ok(usable);
            }
            for container in &containers {
                self.client.remove(&container.id).await?;
            }
            timer.tick().await;
        }
    }

    /// Creates the container under a name that leads people back to the node.
    async fn make(&self, order: &CreateOrder, spec: &Value) -> Result<String, Error> {
        let system: String = (self.options.owner.system.as_str().chars())
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        let name = format!("{}-{system}", order.hostname());
        if let Some(id) = self.client.create(Some(&name), spec).await? {
            return Ok(id);
        }
        // The name is in use: by a call for this order that was cancelled and still took effect, or by somebody else.
        if let Some(id) = self.adopt(order).await? {
            return Ok(id);
        }
        let id = self.client.create(None, spec).await?;
        id.ok_or_else(|| Error::retry("the container runtime found no free name for a container"))
    }

    async fn bring_up(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
        container: &str,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let username = self.prepare_login(order, label, container).await?;
        self.client.start(container).await?;
        let details = self.wait_until_running(label, container).await?;
        let mut instance = self.instance(label, container, &details).await?;
        instance.username = username;
        if let (Some(address), Some(ConnectionPort::Number(port)), true) = (
            &instance.interface_ip,
            &instance.connection_port,
            label.host_key_checking,
        ) {
            progress.set_stage(format!(
                "waiting for SSH on port {} of the container",
                label.ssh_port
            ));
            instance.host_keys = self.wait_for_ssh(label, container, address, *port).await?;
        }
        Ok(instance)
    }

    async fn wait_until_running(
        &self,
        label: &ContainerLabelOptions,
        container: &str,
    ) -> Result<ContainerDetails, Error> {
        let timer = self.options.poll.start();
        loop {
            let details = self.client.inspect(container).await?;
            let details = details.ok_or_else(|| removed(container))?;
            if details.is_running() {
                return Ok(details);
            }
            if !details.is_new() {
                return Err(self.exit_error(label, container, &details).await);
            }
            timer.tick().await;
        }
    }

    /// Returns the host keys of sshd as soon as it answers. Fails as soon as the container exits.
    async fn wait_for_ssh(
        &self,
        label: &ContainerLabelOptions,
        container: &str,
        address: &str,
        port: u16,
    ) -> Result<Vec<Box<str>>, Error> {
        let deadline = Instant::now() + self.options.boot_timeout;
        loop {
            let limit = deadline.saturating_duration_since(Instant::now());
            let target = nodescan::ScanTarget {
                provider: self.options.owner.provider.as_str().into(),
                address: address.into(),
                port,
                connection_type: label.connection_type.clone(),
                timeout: limit,
            };
            let exited = async {
                if let Err(error) = self.client.wait(container, limit).await {
                    tracing::debug!(container, %error, "failed to watch container; scanning only");
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                scan = self.scanner.scan(&target) => return match scan {
                    Ok(scan) => Ok(scan.keys.iter().map(|key| key.as_str().into()).collect()),
                    Err(error) => Err(self.ssh_error(label, container).await.because(error)),
                },
                () = exited => {
                    self.wait_until_running(label, container).await?;
                }
            }
        }
    }

    async fn instance(
        &self,
        label: &ContainerLabelOptions,
        container: &str,
        details: &ContainerDetails,
    ) -> Result<Instance, Error> {
        let info = self.info().await?;
        let mut instance = Instance {
            private_ipv4: details.address().map(Into::into),
            host_id: info.name.as_deref().map(Into::into),
            ..Instance::new(container.into(), cost(label))
        };
        match label.access {
            ContainerAccess::Exec => {
                instance.interface_ip = Some(container.into());
                instance.connection_type = Some(info.runtime_name().into());
                instance.connection_port = Some(ConnectionPort::Null);
            }
            ContainerAccess::Ssh => {
                let port = if self.options.shares_host_network() {
                    label.ssh_port
                } else {
                    details.published_port(label.ssh_port).ok_or_else(|| {
                        Error::retry(format!(
                            "port {} of container {container} is not published",
                            label.ssh_port
                        ))
                    })?
                };
                let address = self.options.reachable_address();
                if address.contains(':') {
                    instance.public_ipv6 = Some(address.clone());
                } else {
                    instance.public_ipv4 = Some(address.clone());
                }
                instance.interface_ip = Some(address);
                instance.connection_port = Some(ConnectionPort::Number(port));
            }
        }
        Ok(instance)
    }

    /// Returns why a container that should run has exited. One that was killed may run longer the next time.
    async fn exit_error(
        &self,
        label: &ContainerLabelOptions,
        container: &str,
        details: &ContainerDetails,
    ) -> Error {
        let state = &details.state;
        let mut text = details.describe();
        let killed = state.exit_code > SIGNALLED && !state.out_of_memory;
        if state.out_of_memory {
            text.push_str("; give the label more `memory`");
        } else if killed && label.memory.is_some() {
            // Podman does not always report that it ran out of memory.
            text.push_str("; it was killed, perhaps because its label has too little `memory`");
        }
        text.push_str(&self.last_output(container).await);
        if killed {
            Error::retry(text)
        } else {
            Error::permanent(text)
        }
    }

    /// The next attempt needs another container: waiting longer for this one was configured not to help.
    async fn ssh_error(&self, label: &ContainerLabelOptions, container: &str) -> Error {
        let log = self.last_output(container).await;
        let text = format!(
            "container {container} runs, but sshd does not answer on its port {}{log}",
            label.ssh_port
        );
        Error::new(ErrorClass::Failed, text)
    }

    /// Returns the last lines of output, as the end of a sentence.
    async fn last_output(&self, container: &str) -> String {
        match self.client.logs(container, LAST_LINES).await {
            Ok(log) if log.trim().is_empty() => "; it wrote nothing".to_owned(),
            Ok(log) => format!("; its last output:\n{}", log.trim_end()),
            Err(_) => String::new(),
        }
    }
}

/// The next call creates another container.
fn removed(container: &str) -> Error {
    Error::retry(format!(
        "container {container} was removed while it started"
    ))
}
