//! Making a container.

use std::collections::BTreeMap;

use nodeyard_driver::{CreateOrder, Error, Instance, State, Step};
use nodeyard_model::{ConnectionPort, Timestamp};
use nodeyard_nodescan as nodescan;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::catalog::Login;
use super::{CORES_LABEL, ContainerDriver, RAM_LABEL, takes};
use crate::archive;
use crate::engine::{Container, Inspected};
use crate::host::necessary_ulimits;
use crate::login::{self, Account, Files, HOST_KEY_DIRECTORY};
use crate::options::{LabelOptions, Reach};

/// How many lines of its output explain why a container ended.
const LAST_LINES: u32 = 20;
/// Larger ones are not read to their end.
const MAX_PASSWD: u64 = 4 << 20;
/// Signals end a process with a code above this.
const SIGNALLED: i64 = 128;

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Create {
    /// Asked for, perhaps already made without our knowing.
    #[default]
    Ordered,
    Made {
        container: String,
    },
    Started {
        container: String,
        since: Timestamp,
        /// Who logs in, where only the image says so.
        username: Option<Box<str>>,
    },
}

impl ContainerDriver {
    pub(super) async fn step_create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let label = self.label(&order.pool, &order.label)?;
        match state.read()? {
            Create::Ordered => {
                self.info().await?.check(label)?;
                let image = self.boot_image(order, label, now).await?;
                let body = self.body(order, label, &image).await?;
                if !state.take_fresh() && !self.clear_debris(order, state).await? {
                    return Ok(Step::wait(self.options.poll.least));
                }
                if state.external_id.is_none() {
                    let container = self.make(order, &body).await?;
                    state.external_id = Some(container.as_str().into());
                    state.write(&Create::Made { container })?;
                }
                Ok(Step::go_on())
            }
            Create::Made { container } => {
                let username = match self.bring_up(order, label, &container).await {
                    Ok(username) => username,
                    Err(error) if self.engine.inspect(&container).await?.is_some() => {
                        return Err(error);
                    }
                    Err(_) => return Err(vanished(&container, state)?),
                };
                state.write(&Create::Started {
                    container,
                    since: now,
                    username,
                })?;
                Ok(Step::go_on())
            }
            Create::Started {
                container,
                since,
                username,
            } => {
                let Some(inspected) = self.engine.inspect(&container).await? else {
                    return Err(vanished(&container, state)?);
                };
                if inspected.is_new() {
                    return Ok(Step::wait(self.options.poll.after(now.since(since))));
                }
                if !inspected.is_running() {
                    start_over(state)?;
                    return Err(self.ended(label, &container, &inspected).await);
                }
                let mut instance = self.instance(label, &container, &inspected).await?;
                instance.username = username;
                match self
                    .answers(label, instance, &container, since, now)
                    .await?
                {
                    Some(instance) => Ok(Step::Done(instance)),
                    // It has ended meanwhile; the next look tells how.
                    None => Ok(Step::go_on()),
                }
            }
        }
    }

    /// What an earlier run of this order left behind: one good container is taken over, the others go. True if nothing
    /// is in the way any more.
    async fn clear_debris(&self, order: &CreateOrder, state: &mut State) -> Result<bool, Error> {
        let owner = &self.options.owner;
        let mut containers = self.engine.containers().await?;
        containers.retain(|container| owner.owns_node(&container.tags(), order.node));
        let good = containers.iter().position(Container::is_usable);
        let good = good.map(|index| containers.remove(index));
        for container in &containers {
            self.engine.remove(&container.id).await?;
        }
        if !containers.is_empty() {
            return Ok(false);
        }
        state.external_id = None;
        if let Some(container) = good {
            state.external_id = Some(container.id.as_str().into());
            state.write(&Create::Made {
                container: container.id,
            })?;
        }
        Ok(true)
    }

    /// Somebody else may have used the name that leads people back to the node.
    async fn make(&self, order: &CreateOrder, body: &Value) -> Result<String, Error> {
        let system: String = (self.options.owner.system.as_str().chars())
            .filter(char::is_ascii_alphanumeric)
            .take(8)
            .collect();
        let name = format!("{}-{system}", order.hostname());
        if let Some(id) = self.engine.create(Some(&name), body).await? {
            return Ok(id);
        }
        let id = self.engine.create(None, body).await?;
        id.ok_or_else(|| Error::retry("the container runtime finds no name for a container"))
    }

    async fn body(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
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
        if self.publishes(label) {
            put("ExposedPorts", json!({port_key(label): {}}));
        }
        Ok(body)
    }

    fn publishes(&self, label: &LabelOptions) -> bool {
        label.reach == Reach::Ssh && !self.options.shares_host_network()
    }

    fn host_config(&self, label: &LabelOptions) -> Value {
        let mut host = Map::new();
        let mut put = |key: &str, value: Value| host.insert(key.to_owned(), value);
        if let Some(network) = &self.options.network {
            put("NetworkMode", (&**network).into());
        }
        if self.publishes(label) {
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
            // Together with swap: there is none on top.
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
        let mut ulimits: BTreeMap<&str, u64> = necessary_ulimits().collect();
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

    /// The label's, the image's, or for an image that has none (a root file system that was imported) what makes it
    /// reachable.
    async fn command(
        &self,
        label: &LabelOptions,
        image: &str,
    ) -> Result<Option<Vec<String>>, Error> {
        if label.command.is_some() {
            return Ok(label.command.clone());
        }
        let config = self.engine.image_config(image).await?.ok_or_else(|| {
            Error::permanent(format!(
                "image {image} of label {} is not in the container runtime any more",
                label.name
            ))
        })?;
        if config.has_command() {
            return Ok(None);
        }
        let script = match label.reach {
            // Where init would make the directory for it.
            Reach::Ssh => format!(
                "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -p {}",
                label.ssh_port
            ),
            Reach::Exec => "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done".to_owned(),
        };
        Ok(Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), script]))
    }

    async fn bring_up(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
        container: &str,
    ) -> Result<Option<Box<str>>, Error> {
        let username = self.prepare_login(order, label, container).await?;
        self.engine.start(container).await?;
        Ok(username)
    }

    /// Puts in place what a login needs, and returns who logs in where only the image says so. May be done twice.
    async fn prepare_login(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
        container: &str,
    ) -> Result<Option<Box<str>>, Error> {
        if label.reach == Reach::Exec {
            return Ok(None);
        }
        let login = self.login(order, label)?;
        let account = if label.authorized_keys.is_empty() && login.is_recorded {
            None
        } else {
            self.account(container, &login).await?
        };
        let authorized = match &account {
            _ if label.authorized_keys.is_empty() => None,
            Some(account) => {
                let make_home = !self.engine.has_path(container, &account.home).await?;
                Some((account, &*label.authorized_keys, make_home))
            }
            None => return Err(nobody(label, &login)),
        };
        let files = Files {
            authorized,
            fresh_host_keys: self.lacks_host_keys(container).await?,
        };
        if let Some(archive) = files.pack()? {
            self.engine.put_in(container, archive).await?;
        }
        let account = account.filter(|_| !login.is_recorded);
        Ok(account.map(|account| account.name))
    }

    async fn account(&self, container: &str, login: &Login) -> Result<Option<Account>, Error> {
        let Some(archive) = self.engine.take_out(container, "/etc/passwd").await? else {
            return Ok(None);
        };
        let passwd = archive::first_file(&archive, MAX_PASSWD).map_err(unreadable)?;
        let passwd = passwd.unwrap_or_default();
        Ok(login::account(&passwd, login.username.as_deref()))
    }

    /// An image that has none is a good image: each of its containers is then known by its own.
    async fn lacks_host_keys(&self, container: &str) -> Result<bool, Error> {
        match self.engine.take_out(container, HOST_KEY_DIRECTORY).await? {
            Some(archive) => {
                let files = archive::names(&archive).map_err(unreadable)?;
                Ok(!login::has_host_key(&files))
            }
            // There is no sshd that would look for them here.
            None => Ok(false),
        }
    }

    async fn instance(
        &self,
        label: &LabelOptions,
        container: &str,
        inspected: &Inspected,
    ) -> Result<Instance, Error> {
        let info = self.info().await?;
        let mut instance = Instance {
            private_ipv4: inspected.address().map(Into::into),
            host_id: info.name.as_deref().map(Into::into),
            ..Instance::new(container.into(), takes(label))
        };
        match label.reach {
            Reach::Exec => {
                instance.interface_ip = Some(container.into());
                instance.connection_type = Some(info.engine().into());
                instance.connection_port = Some(ConnectionPort::Null);
            }
            Reach::Ssh => {
                let port = if self.options.shares_host_network() {
                    label.ssh_port
                } else {
                    inspected.published(label.ssh_port).ok_or_else(|| {
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

    /// Waits until sshd answers, or the container ends: then there is none. What is not asked for is not waited for.
    async fn answers(
        &self,
        label: &LabelOptions,
        mut instance: Instance,
        container: &str,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Option<Instance>, Error> {
        let (Some(address), Some(ConnectionPort::Number(port)), true) = (
            &instance.interface_ip,
            &instance.connection_port,
            label.host_key_checking,
        ) else {
            return Ok(Some(instance));
        };
        let limit = self.options.boot_timeout.saturating_sub(now.since(since));
        let target = nodescan::ScanTarget {
            address: address.clone(),
            port: *port,
            connection_type: label.connection_type.clone(),
            timeout: limit,
        };
        let ended = async {
            if let Err(error) = self.engine.wait(container, limit).await {
                // Then only the scan tells.
                tracing::debug!(container, %error, "nobody watches whether a container ends");
                std::future::pending::<()>().await;
            }
        };
        let scan = tokio::select! {
            scan = self.scanner.scan(&target) => scan,
            () = ended => return Ok(None),
        };
        match scan {
            Ok(scan) => {
                let keys = scan.keys.iter().map(|key| key.as_str().into());
                instance.host_keys = keys.collect();
                Ok(Some(instance))
            }
            Err(error) => {
                let log = self.last_lines(container).await;
                let text = format!(
                    "container {container} runs, but sshd does not answer on its port {}{log}",
                    label.ssh_port
                );
                Err(Error::retry(text).because(error))
            }
        }
    }

    /// Why a container that should run does not. One that was killed may live longer the next time.
    async fn ended(&self, label: &LabelOptions, container: &str, inspected: &Inspected) -> Error {
        let state = &inspected.state;
        let mut text = inspected.describe();
        let killed = state.exit_code > SIGNALLED && !state.out_of_memory;
        if state.out_of_memory {
            text.push_str("; give the label more `memory`");
        } else if killed && label.memory.is_some() {
            // Podman does not always notice.
            text.push_str(
                "; it was killed, perhaps because its label gives it too little `memory`",
            );
        }
        text.push_str(&self.last_lines(container).await);
        if killed {
            Error::retry(text)
        } else {
            Error::permanent(text)
        }
    }

    /// The output, as the end of a sentence.
    async fn last_lines(&self, container: &str) -> String {
        match self.engine.logs(container, LAST_LINES).await {
            Ok(log) if log.trim().is_empty() => "; it wrote nothing".to_owned(),
            Ok(log) => format!("; its last output:\n{}", log.trim_end()),
            Err(_) => String::new(),
        }
    }
}

fn nobody(label: &LabelOptions, login: &Login) -> Error {
    let who = login.username.as_deref().unwrap_or("zuul or root");
    Error::permanent(format!(
        "label {}: the image has no user {who} to give `authorized-keys` to; set `username` of the image",
        label.name
    ))
}

fn port_key(label: &LabelOptions) -> String {
    format!("{}/tcp", label.ssh_port)
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::retry("what the container runtime says is in a container cannot be read").because(cause)
}

/// Somebody has removed it; another one is made.
fn vanished(container: &str, state: &mut State) -> Result<Error, Error> {
    start_over(state)?;
    Ok(Error::retry(format!(
        "container {container} was removed while it started"
    )))
}

/// What was made is of no use; the next run clears it away and makes another.
fn start_over(state: &mut State) -> Result<(), Error> {
    state.write(&Create::Ordered)
}
