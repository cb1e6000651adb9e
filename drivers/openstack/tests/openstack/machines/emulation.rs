//! A cloud in small, as far as the driver sees it. Servers take two looks to boot and two to go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use nodeyard_model::Resources;
use nodeyard_openstack::{Body, Method, Request, Response, StatusCode, Transport, TransportError};
use serde_json::{Value, json};

const LOOKS: u32 = 2;
const EPOCH: i64 = 1_700_000_000;
/// The project of the login.
pub(crate) const PROJECT: &str = "own";

#[derive(Debug, Default)]
pub(crate) struct Emulation(Mutex<World>);

#[derive(Debug, Default)]
struct World {
    last_id: u32,
    changes: i64,
    servers: BTreeMap<String, Server>,
    /// Shown as changed.
    deleted: Vec<Server>,
    /// How many servers were listed.
    listed: usize,
    ports: BTreeMap<String, Value>,
    ips: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
    /// Beside those that are always there.
    networks: Vec<Value>,
    keys: Vec<Value>,
    /// How often something was asked for, by the last part of its path.
    asked: BTreeMap<String, usize>,
    /// Volumes do not go with their servers, as it happens.
    sticky_volumes: bool,
    /// Nova cannot reach the compute host: it marks servers as `deleting`, and removes those that it has marked before.
    host_gone: bool,
    /// Zones without a compute host that is up.
    lost_zones: BTreeSet<String>,
    /// Cinder answers every call with this status.
    volume_error: Option<u16>,
    /// Logins have no project.
    without_project: bool,
}

#[derive(Debug)]
struct Server {
    record: Value,
    looks: u32,
    going: bool,
    /// The number of the last change.
    change: i64,
}

impl Server {
    fn change(&mut self, change: i64) {
        self.change = change;
        self.record["updated"] = json!(time(change));
    }
}

/// A change each second.
fn time(change: i64) -> String {
    jiff::Timestamp::from_second(EPOCH + change)
        .unwrap()
        .to_string()
}

type Said = (u16, Value);

impl Emulation {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Everything that exists, a line each.
    pub(crate) fn exists(&self) -> BTreeSet<String> {
        let world = self.world();
        let kinds = [
            ("server", world.servers.keys().collect::<Vec<_>>()),
            ("port", world.ports.keys().collect()),
            ("ip", world.ips.keys().collect()),
            ("volume", world.volumes.keys().collect()),
        ];
        let lines = kinds
            .into_iter()
            .flat_map(|(kind, ids)| ids.into_iter().map(move |id| format!("{kind} {id}")));
        lines.collect()
    }

    pub(crate) fn used(&self) -> Resources {
        let world = self.world();
        let servers = i64::try_from(world.servers.len()).unwrap();
        let volumes = i64::try_from(world.volumes.len()).unwrap();
        let mut used = Resources::new(servers, servers, servers * 2048);
        used.set("volumes".into(), volumes);
        used.set("volume-gb".into(), volumes * 50);
        used
    }

    pub(crate) fn keep_volumes(&self) {
        self.world().sticky_volumes = true;
    }

    pub(crate) fn lose_zone(&self, name: &str) {
        self.world().lost_zones.insert(name.to_owned());
    }

    pub(crate) fn lose_compute_host(&self) {
        self.world().host_gone = true;
    }

    pub(crate) fn break_volume_service(&self, status: u16) {
        self.world().volume_error = Some(status);
    }

    pub(crate) fn log_in_without_project(&self) {
        self.world().without_project = true;
    }

    pub(crate) fn volumes(&self) -> Vec<Value> {
        self.world().volumes.values().cloned().collect()
    }

    /// Somebody deletes all servers.
    pub(crate) fn remove_servers(&self) {
        let mut world = self.world();
        for server in world.servers.values_mut() {
            (server.going, server.looks) = (true, LOOKS);
        }
        world.look();
    }

    pub(crate) fn add_network(&self, name: &str) {
        let net = json!({"id": format!("n-{name}"), "name": name, "router:external": false});
        self.world().networks.push(net);
    }

    pub(crate) fn add_key(&self, name: &str) {
        let pair = json!({"keypair": {"name": name}});
        self.world().keys.push(pair);
    }

    /// How many servers all lists had together.
    pub(crate) fn listed_servers(&self) -> usize {
        self.world().listed
    }

    pub(crate) fn asked(&self, what: &str) -> usize {
        self.world().asked.get(what).copied().unwrap_or_default()
    }

    /// Somebody else's server, with the name of one of ours.
    pub(crate) fn add_stranger(&self, name: &str) {
        let body = json!({"server": {"name": name, "flavorRef": "f-small", "metadata": {"nodepool_provider_name": "cloud", "nodepool_node_id": "0000000001"}}});
        self.world().create_server(&body);
    }

    /// A server whose order was lost on its way for a while.
    pub(crate) fn add_late(&self, metadata: &BTreeMap<&'static str, String>) {
        let body =
            json!({"server": {"name": "late", "flavorRef": "f-small", "metadata": metadata}});
        self.world().create_server(&body);
    }

    /// A port that is down and has no server, in a project.
    pub(crate) fn add_down_port(&self, project: &str) {
        let mut world = self.world();
        let id = world.id("p");
        let port = json!({
            "id": id, "project_id": project, "tenant_id": project, "network_id": "n-net", "status": "DOWN",
            "device_id": "", "device_owner": "", "mac_address": id, "fixed_ips": [],
        });
        world.ports.insert(id, port);
    }

    /// A floating IP of another project, without a port.
    pub(crate) fn add_floating_ip_elsewhere(&self) {
        let body = json!({"floatingip": {
            "floating_network_id": "n-public", "description": "", "tenant_id": "other", "project_id": "other",
        }});
        self.world().create_ip(&body);
    }

    /// An address of ours that nobody uses.
    pub(crate) fn add_floating_ip(&self, description: &str) {
        let body =
            json!({"floatingip": {"floating_network_id": "n-public", "description": description}});
        self.world().create_ip(&body);
    }
}

impl World {
    fn id(&mut self, kind: &str) -> String {
        self.last_id += 1;
        format!("{kind}-{}", self.last_id)
    }

    fn create_server(&mut self, body: &Value) -> Said {
        let wanted = &body["server"];
        let zone = wanted["availability_zone"].as_str().unwrap_or_default();
        if self.lost_zones.contains(zone) {
            return (
                400,
                json!({"badRequest": {"code": 400, "message": "The requested availability zone is not available"}}),
            );
        }
        let id = self.id("s");
        let address = format!("10.9.0.{}", self.last_id % 250 + 1);
        let port = self.id("p");
        self.ports.insert(port.clone(), json!({
            "id": port, "network_id": "n-net", "status": "ACTIVE", "device_id": id,
            "device_owner": "compute:nova", "mac_address": port, "fixed_ips": [{"ip_address": address}],
        }));
        let mut volumes = Vec::new();
        if wanted["block_device_mapping_v2"].is_array() {
            let volume = self.id("v");
            let size = &wanted["block_device_mapping_v2"][0]["volume_size"];
            self.volumes.insert(
                volume.clone(),
                json!({"id": volume, "size": size, "status": "in-use", "metadata": {}}),
            );
            volumes.push(json!({"id": volume, "delete_on_termination": true}));
        }
        let record = json!({
            "id": id, "name": wanted["name"], "status": "BUILD", "metadata": wanted["metadata"],
            "flavor": {"id": wanted["flavorRef"]}, "hostId": "h", "OS-EXT-AZ:availability_zone": "nova",
            "addresses": {"net": [{"addr": address, "version": 4, "OS-EXT-IPS:type": "fixed", "OS-EXT-IPS-MAC:mac_addr": port}]},
            "os-extended-volumes:volumes_attached": volumes,
        });
        let mut server = Server {
            record,
            looks: 0,
            going: false,
            change: 0,
        };
        self.changes += 1;
        server.change(self.changes);
        self.servers.insert(id.clone(), server);
        (202, json!({"server": {"id": id}}))
    }

    /// Time passes with each look.
    fn look(&mut self) {
        for server in self.servers.values_mut() {
            server.looks += 1;
            if !server.going && server.looks >= LOOKS && server.record["status"] != "ACTIVE" {
                server.record["status"] = json!("ACTIVE");
                self.changes += 1;
                server.change(self.changes);
            }
        }
        let gone = |server: &Server| server.going && server.looks >= LOOKS;
        let ended: Vec<_> = self
            .servers
            .iter()
            .filter(|(_, s)| gone(s))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ended {
            let mut server = self.servers.remove(&id).unwrap();
            self.changes += 1;
            server.change(self.changes);
            server.record["status"] = json!("DELETED");
            self.ports.retain(|_, port| port["device_id"] != *id);
            for ip in self.ips.values_mut() {
                if ip["port_id"]
                    .as_str()
                    .is_some_and(|port| !self.ports.contains_key(port))
                {
                    ip["port_id"] = Value::Null;
                }
            }
            let volumes = server.record["os-extended-volumes:volumes_attached"]
                .as_array()
                .unwrap();
            for volume in volumes {
                let volume = volume["id"].as_str().unwrap();
                if self.sticky_volumes {
                    self.volumes.get_mut(volume).unwrap()["status"] = json!("available");
                } else {
                    self.volumes.remove(volume);
                }
            }
            self.deleted.push(server);
        }
    }

    fn servers(&mut self, since: Option<&str>) -> Said {
        self.look();
        let since = since.map(|time| time.parse::<jiff::Timestamp>().unwrap().as_second() - EPOCH);
        let deleted = self.deleted.iter().filter(|_| since.is_some());
        let listed = self.servers.values().chain(deleted);
        let listed = listed.filter(|server| since.is_none_or(|since| server.change >= since));
        let servers: Vec<_> = listed.map(|server| &server.record).collect();
        self.listed += servers.len();
        (200, json!({"servers": servers}))
    }

    fn create_ip(&mut self, body: &Value) -> Said {
        let port = &body["floatingip"]["port_id"];
        if !port.is_null() && self.ips.values().any(|ip| ip["port_id"] == *port) {
            return (
                409,
                json!({"NeutronError": {"type": "FloatingIPPortAlreadyAssociated", "message": "it has one"}}),
            );
        }
        let id = self.id("i");
        let mut ip = body["floatingip"].clone();
        ip["id"] = json!(id);
        ip["floating_ip_address"] = json!(format!("198.18.0.{}", self.last_id % 250 + 1));
        ip["revision_number"] = json!(1);
        self.ips.insert(id, ip.clone());
        (201, json!({"floatingip": ip}))
    }

    /// What Neutron says to whoever has another revision in mind.
    fn conflict(&self, id: &str, condition: Option<&str>) -> Option<Said> {
        let revision = &self.ips.get(id)?["revision_number"];
        let meant = format!("revision_number={revision}");
        condition.filter(|condition| *condition != meant)?;
        Some((
            412,
            json!({"NeutronError": {"type": "RevisionNumberConstraintFailed", "message": "changed"}}),
        ))
    }

    fn change_ip(&mut self, id: &str, condition: Option<&str>, body: &Value) -> Said {
        if let Some(conflict) = self.conflict(id, condition) {
            return conflict;
        }
        let Some(ip) = self.ips.get_mut(id) else {
            return missing();
        };
        let revision = ip["revision_number"].as_i64().unwrap();
        for (key, value) in body["floatingip"].as_object().unwrap() {
            ip[key] = value.clone();
        }
        ip["revision_number"] = json!(revision + 1);
        (200, json!({"floatingip": ip}))
    }

    fn answer(
        &mut self,
        method: &Method,
        path: &[&str],
        since: Option<&str>,
        condition: Option<&str>,
        body: &Value,
    ) -> Said {
        let list = |key: &str, values: Vec<&Value>| (200, json!({key: values}));
        if let (&Method::GET, Some(last)) = (method, path.last()) {
            *self.asked.entry((*last).to_owned()).or_default() += 1;
        }
        if let (Some(status), Some(&"v3")) = (self.volume_error, path.first()) {
            return (status, Value::Null);
        }
        match (method.as_str(), path) {
            ("GET", ["v2.1", "servers", "detail"]) => self.servers(since),
            ("GET", ["v2.1", "servers", id]) => match self.servers.get(*id) {
                Some(server) => (200, json!({"server": server.record})),
                None => missing(),
            },
            ("POST", ["v2.1", "servers"]) => self.create_server(body),
            ("DELETE", ["v2.1", "servers", id]) => match self.servers.get_mut(*id) {
                Some(server) => {
                    let again = server.record["OS-EXT-STS:task_state"] == "deleting";
                    server.record["OS-EXT-STS:task_state"] = json!("deleting");
                    self.changes += 1;
                    server.change(self.changes);
                    server.going = again || !self.host_gone;
                    if !again {
                        server.looks = 0;
                    }
                    (204, Value::Null)
                }
                None => missing(),
            },
            ("GET", ["v2.1", "flavors", "detail"]) => (
                200,
                json!({"flavors": [
                    {"id": "f-small", "name": "small", "ram": 2048, "vcpus": 1},
                    {"id": "f-large", "name": "large", "ram": 16384, "vcpus": 8},
                ]}),
            ),
            ("GET", ["v2.1", "os-availability-zone"]) => {
                let zone = |name: &str| {
                    let available = !self.lost_zones.contains(name);
                    json!({"zoneName": name, "zoneState": {"available": available}})
                };
                let zones = ["nova", "spare"].map(zone);
                (200, json!({"availabilityZoneInfo": zones}))
            }
            ("GET", ["v2.1", "limits"]) => (
                200,
                json!({"limits": {"absolute": {
                "maxTotalCores": 20, "maxTotalInstances": -1, "maxTotalRAMSize": 51200}}}),
            ),
            ("GET", ["v2.0", "networks"]) => {
                let mut networks = vec![
                    json!({"id": "n-net", "name": "net", "router:external": false}),
                    json!({"id": "n-public", "name": "public", "router:external": true}),
                ];
                networks.extend(self.networks.iter().cloned());
                (200, json!({"networks": networks}))
            }
            ("GET", ["v2.1", "os-keypairs"]) => list("keypairs", self.keys.iter().collect()),
            ("GET", ["v2.0", "ports"]) => list("ports", self.ports.values().collect()),
            ("DELETE", ["v2.0", "ports", id]) => removed(&mut self.ports, id),
            ("GET", ["v2.0", "floatingips"]) => list("floatingips", self.ips.values().collect()),
            ("POST", ["v2.0", "floatingips"]) => self.create_ip(body),
            ("PUT", ["v2.0", "floatingips", id]) => self.change_ip(id, condition, body),
            ("DELETE", ["v2.0", "floatingips", id]) => match self.conflict(id, condition) {
                Some(conflict) => conflict,
                None => removed(&mut self.ips, id),
            },
            ("GET", ["v2", "images"]) => (
                200,
                json!({"images": [{"id": "disk-id", "name": "disk", "status": "active"}]}),
            ),
            ("GET", ["v3", "volumes", "detail"]) => {
                list("volumes", self.volumes.values().collect())
            }
            ("DELETE", ["v3", "volumes", id]) => removed(&mut self.volumes, id),
            ("POST", ["v3", "volumes", id, "metadata"]) => match self.volumes.get_mut(*id) {
                Some(volume) => {
                    volume["metadata"] = body["metadata"].clone();
                    (200, json!({"metadata": volume["metadata"]}))
                }
                None => missing(),
            },
            ("GET", ["v3", "limits"]) => (
                200,
                json!({"limits": {"absolute": {
                "maxTotalVolumes": 10, "maxTotalVolumeGigabytes": 1000}}}),
            ),
            _ => panic!("{method} {path:?} is not emulated"),
        }
    }
}

fn missing() -> Said {
    (
        404,
        json!({"itemNotFound": {"code": 404, "message": "there is no such thing"}}),
    )
}

fn removed(things: &mut BTreeMap<String, Value>, id: &str) -> Said {
    match things.remove(id) {
        Some(_) => (204, Value::Null),
        None => missing(),
    }
}

#[async_trait]
impl Transport for Emulation {
    async fn send(&self, request: Request) -> Result<Response, TransportError> {
        let bytes = match &request.body {
            Body::Bytes(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let path: Vec<_> = request.url.path_segments().unwrap().collect();
        let condition = request
            .headers
            .get("if-match")
            .map(|value| value.to_str().unwrap());
        let (status, said) = if path == ["v3", "auth", "tokens"] {
            let service = |kind: &str| json!({"type": kind, "endpoints": [{"interface": "public", "region": "r", "url": "http://cloud"}]});
            let catalog = ["compute", "network", "image", "block-storage"].map(service);
            let mut token = json!({"catalog": catalog});
            if !self.world().without_project {
                token["project"] = json!({"id": PROJECT});
            }
            (201, json!({"token": token}))
        } else {
            let mut pairs = request.url.query_pairs();
            let since = pairs.find(|(key, _)| key == "changes-since");
            let since = since.as_ref().map(|(_, time)| &**time);
            self.world()
                .answer(&request.method, &path, since, condition, &body)
        };
        let mut response = Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: Default::default(),
            body: said.to_string().into(),
        };
        response
            .headers
            .insert("x-subject-token", "t".parse().unwrap());
        Ok(response)
    }
}
