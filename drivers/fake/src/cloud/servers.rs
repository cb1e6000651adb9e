//! Servers, in the format of Nova's detailed list.

use std::collections::{BTreeMap, HashMap};

use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::catalog::{Addressing, ById, Flavor};
use super::quota::Usage;
use super::time::iso;
use super::{Cloud, CloudError, Event, Failure, Reply};

/// Never contacted: host key scans accept every address that contains `fake`.
const ADDRESS: &str = "fake";
const ADDRESS_V6: &str = "fake_v6";
const VOLUME_GB: i64 = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    Build,
    Active,
    Error,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Server {
    pub(super) id: String,
    name: String,
    status: Status,
    created: String,
    #[serde(rename = "hostId")]
    host_id: &'static str,
    #[serde(rename = "OS-EXT-AZ:availability_zone")]
    zone: String,
    #[serde(rename = "OS-EXT-STS:task_state")]
    task_state: Option<&'static str>,
    #[serde(rename = "os-extended-volumes:volumes_attached")]
    volumes: Vec<IdOnly>,
    flavor: Flavor,
    image: Value,
    metadata: BTreeMap<String, String>,
    key_name: Option<String>,
    config_drive: Value,
    security_groups: Vec<Value>,
    addresses: BTreeMap<&'static str, Vec<Address>>,
    public_v4: String,
    public_v6: String,
    private_v4: String,
    interface_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,

    #[serde(skip)]
    takes: Usage,
    #[serde(skip)]
    terminate_volume: bool,
    #[serde(skip)]
    pub(super) port: String,
    /// The fault that it will have instead of becoming active.
    #[serde(skip)]
    boot_failure: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct IdOnly {
    id: String,
}

#[derive(Debug, Clone, Serialize)]
struct Address {
    version: u8,
    addr: String,
    #[serde(rename = "OS-EXT-IPS:type")]
    kind: &'static str,
}

#[derive(Debug, Clone, Serialize)]
struct Fault {
    code: u16,
    message: String,
}

impl Server {
    fn assign_addresses(&mut self, addressing: Addressing) {
        let fixed = |version, addr: &str| Address {
            version,
            addr: addr.to_owned(),
            kind: "fixed",
        };
        self.private_v4 = ADDRESS.to_owned();
        self.interface_ip = ADDRESS.to_owned();
        self.addresses.insert("private", vec![fixed(4, ADDRESS)]);
        match addressing {
            Addressing::Private | Addressing::Nat => {}
            Addressing::Public => {
                self.public_v4 = ADDRESS.to_owned();
                self.addresses.insert("public", vec![fixed(4, ADDRESS)]);
            }
            Addressing::PublicV6 => {
                self.public_v4 = ADDRESS.to_owned();
                self.public_v6 = ADDRESS_V6.to_owned();
                self.interface_ip = ADDRESS_V6.to_owned();
                let both = vec![fixed(4, ADDRESS), fixed(6, ADDRESS_V6)];
                self.addresses.insert("public", both);
            }
        }
    }

    /// Adds an attached floating IP to the addresses.
    pub(super) fn add_floating_ip(&mut self, address: &str) {
        self.public_v4 = address.to_owned();
        self.interface_ip = address.to_owned();
        let floating = Address {
            version: 4,
            addr: address.to_owned(),
            kind: "floating",
        };
        self.addresses.entry("private").or_default().push(floating);
    }

    fn fail(&mut self, message: String) {
        self.status = Status::Error;
        self.fault = Some(Fault { code: 500, message });
    }
}

/// Servers in the order of their creation, with an index by id.
#[derive(Debug, Default)]
pub(super) struct Servers {
    all: BTreeMap<u64, Server>,
    by_id: HashMap<String, u64>,
    next: u64,
}

impl Servers {
    fn add(&mut self, server: Server) -> u64 {
        self.next += 1;
        self.by_id.insert(server.id.clone(), self.next);
        self.all.insert(self.next, server);
        self.next
    }

    fn remove(&mut self, number: u64) -> Option<Server> {
        let server = self.all.remove(&number)?;
        self.by_id.remove(&server.id);
        Some(server)
    }

    fn get(&self, id: &str) -> Option<&Server> {
        self.all.get(self.by_id.get(id)?)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Server> {
        self.all.get_mut(self.by_id.get(id)?)
    }
}

/// A reference by name or id, or the referenced object as the cloud returned it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Reference {
    NameOrId(String),
    Object { id: String },
}

impl Reference {
    fn text(&self) -> &str {
        match self {
            Self::NameOrId(text) | Self::Object { id: text } => text,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Nic {
    #[serde(rename = "net-id")]
    network: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct CreateServer {
    name: String,
    #[serde(default)]
    image: Option<Reference>,
    #[serde(default)]
    flavor: Option<Reference>,
    #[serde(default)]
    availability_zone: Option<String>,
    #[serde(default)]
    key_name: Option<String>,
    #[serde(default)]
    nics: Option<Vec<Nic>>,
    #[serde(default)]
    security_groups: Option<Vec<Value>>,
    #[serde(default)]
    config_drive: Option<Value>,
    #[serde(default)]
    boot_from_volume: Option<bool>,
    #[serde(default)]
    volume_size: Option<i64>,
    #[serde(default)]
    terminate_volume: Option<bool>,
    #[serde(default)]
    meta: Option<Map<String, Value>>,
}

impl Cloud {
    pub(super) fn list_servers(&self) -> Result<Reply, CloudError> {
        Reply::now(&self.servers.all.values().collect::<Vec<_>>())
    }

    pub(super) fn get_server(&self, wanted: &ById) -> Result<Reply, CloudError> {
        Reply::now(&self.servers.get(&wanted.id))
    }

    pub(super) fn get_server_console(&self, wanted: &ById) -> Result<Reply, CloudError> {
        let console = self.servers.get(&wanted.id).map(|server| {
            let name = &server.name;
            format!("[    0.000000] simulated console\n{name} login: \n")
        });
        Reply::now(&console)
    }

    pub(super) fn create_server(
        &mut self,
        order: CreateServer,
        now: Timestamp,
    ) -> Result<Reply, CloudError> {
        let number = self.add_server(order, now)?;
        self.schedule(Event::ServerBooted(number), self.boot_time, now);
        Reply::now(&self.servers.all.get(&number))
    }

    /// Creates a server and fails.
    pub(super) fn half_create(
        &mut self,
        order: CreateServer,
        now: Timestamp,
    ) -> Result<CloudError, CloudError> {
        let number = self.add_server(order, now)?;
        let Some(server) = self.servers.all.get_mut(&number) else {
            return Err(CloudError::not_found("server", ""));
        };
        server.fail("failed to create server (simulated)".to_owned());
        Ok(CloudError::half_created(&server.id))
    }

    fn add_server(&mut self, order: CreateServer, now: Timestamp) -> Result<u64, CloudError> {
        let zone = self.choose_zone(order.availability_zone)?;
        let addressing = self.addressing(order.nics.as_deref().unwrap_or_default())?;
        let flavor = order
            .flavor
            .as_ref()
            .map(Reference::text)
            .unwrap_or_default();
        let flavor = self
            .catalog
            .flavor(flavor)
            .ok_or_else(|| CloudError::stale(format!("flavor {flavor:?} could not be found")))?
            .clone();
        let image = order
            .image
            .as_ref()
            .map(Reference::text)
            .unwrap_or_default();
        let image = self
            .images
            .find(image)
            .filter(|image| image.status == "active")
            .ok_or_else(|| {
                CloudError::stale(format!("image {image:?} does not exist or is not active"))
            })?;
        let from_volume = order.boot_from_volume == Some(true);
        let size = order.volume_size.unwrap_or(VOLUME_GB);
        if from_volume && size < 1 {
            return Err(CloudError::stale(format!(
                "invalid volume size {size}: must be at least 1"
            )));
        }
        let takes = Usage {
            cores: i64::try_from(flavor.vcpus).unwrap_or(i64::MAX),
            instances: 1,
            ram: i64::try_from(flavor.ram).unwrap_or(i64::MAX),
            volumes: i64::from(from_volume),
            volume_gb: if from_volume { size } else { 0 },
        };
        self.check_quota(takes)?;

        let image = if from_volume {
            Value::String(String::new())
        } else {
            serde_json::json!({"id": image.id})
        };
        let id = self.random.id();
        let port = self.random.id();
        self.ports.attach(&port, &id, &zone);
        let mut volumes = Vec::new();
        if from_volume {
            let volume = self.random.id();
            self.volumes.add(&volume, &id, size);
            volumes.push(IdOnly { id: volume });
        }
        self.used.add(takes);
        let boot_failure = self.draw_boot_failure();
        let mut server = Server {
            id,
            name: order.name,
            status: Status::Build,
            created: iso(now),
            host_id: "fake",
            zone,
            task_state: Some("spawning"),
            volumes,
            flavor,
            image,
            metadata: order.meta.map(metadata).unwrap_or_default(),
            key_name: order.key_name,
            config_drive: order.config_drive.unwrap_or(Value::Null),
            security_groups: order.security_groups.unwrap_or_default(),
            addresses: BTreeMap::new(),
            public_v4: String::new(),
            public_v6: String::new(),
            private_v4: String::new(),
            interface_ip: String::new(),
            fault: None,
            takes,
            terminate_volume: order.terminate_volume == Some(true),
            port,
            boot_failure,
        };
        server.assign_addresses(addressing);
        Ok(self.servers.add(server))
    }

    /// Draws the fault that a server will have instead of becoming active.
    fn draw_boot_failure(&mut self) -> Option<String> {
        if !self.failures.contains_key("boot") {
            return None;
        }
        match self.draw_failure("boot")? {
            Failure::Error(class) if class.eq_ignore_ascii_case("quota") => {
                Some("the request exceeds the quota (simulated)".to_owned())
            }
            Failure::Error(_) => {
                Some("No valid host was found. There are not enough hosts available.".to_owned())
            }
            _ => None,
        }
    }

    fn choose_zone(&mut self, wanted: Option<String>) -> Result<String, CloudError> {
        match wanted {
            Some(zone) if self.catalog.zones.contains(&zone) => Ok(zone),
            Some(zone) => Err(CloudError::stale(format!(
                "the requested availability zone {zone:?} is not available"
            ))),
            None => Ok(self
                .random
                .pick(&self.catalog.zones)
                .cloned()
                .unwrap_or_default()),
        }
    }

    /// Returns the addressing of the last network whose name determines it.
    fn addressing(&self, nics: &[Nic]) -> Result<Addressing, CloudError> {
        let mut addressing = Addressing::Public;
        for nic in nics {
            let network = self.catalog.network(&nic.network).ok_or_else(|| {
                CloudError::stale(format!("network {:?} could not be found", nic.network))
            })?;
            if network.addressing != Addressing::Public {
                addressing = network.addressing;
            }
        }
        Ok(addressing)
    }

    pub(super) fn server_booted(&mut self, number: u64) {
        let Some(server) = self.servers.all.get_mut(&number) else {
            return;
        };
        if server.status != Status::Build {
            return;
        }
        if server.task_state == Some("spawning") {
            server.task_state = None;
        }
        match server.boot_failure.take() {
            Some(message) => server.fail(message),
            None => server.status = Status::Active,
        }
    }

    /// Deletes a server. Succeeds if it does not exist.
    pub(super) fn delete_server(
        &mut self,
        wanted: &ById,
        now: Timestamp,
    ) -> Result<Reply, CloudError> {
        let number = self.servers.by_id.get(&wanted.id).copied();
        if let Some(number) = number
            && let Some(server) = self.servers.all.get_mut(&number)
            && server.task_state != Some("deleting")
        {
            server.task_state = Some("deleting");
            self.schedule(Event::ServerGone(number), self.delete_time, now);
            self.catch_up(now);
        }
        Reply::now(&())
    }

    pub(super) fn server_gone(&mut self, number: u64) {
        let Some(server) = self.servers.remove(number) else {
            return;
        };
        let mut freed = server.takes;
        for volume in &server.volumes {
            if self
                .volumes
                .release(&volume.id, server.terminate_volume)
                .is_none()
            {
                freed.volumes = 0;
                freed.volume_gb = 0;
            }
        }
        self.used.subtract(freed);
        self.ports.remove(&server.port);
        self.floating_ips.detach(&server.port);
    }
}

/// Converts metadata to texts, as Nova does.
fn metadata(meta: Map<String, Value>) -> BTreeMap<String, String> {
    meta.into_iter()
        .map(|(key, value)| match value {
            Value::String(text) => (key, text),
            other => (key, other.to_string()),
        })
        .collect()
}
