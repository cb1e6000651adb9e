//! Nova: servers, flavors, zones and key pairs.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::call::Call;
use crate::error::Error;
use crate::service::Service;
use crate::session::Session;

/// Lines from the end of a console, where it says why a machine did not boot.
const CONSOLE_LINES: usize = 1000;

#[derive(Debug, Clone)]
pub struct Compute(Session);

/// The fields of a server that are used. Most are optional, because clouds may hide them.
#[derive(Debug, Clone, Deserialize)]
pub struct Server {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Box<str>,
    #[serde(default)]
    pub status: Box<str>,
    #[serde(rename = "OS-EXT-STS:task_state", default)]
    pub task_state: Option<Box<str>>,
    #[serde(default)]
    pub metadata: BTreeMap<String, Value>,
    /// By the names of networks.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<Address>>,
    #[serde(rename = "accessIPv4", default)]
    pub access_ipv4: Option<Box<str>>,
    #[serde(rename = "accessIPv6", default)]
    pub access_ipv6: Option<Box<str>>,
    #[serde(default)]
    pub flavor: Option<FlavorRef>,
    /// An empty text for those that boot from a volume.
    #[serde(default)]
    image: Value,
    #[serde(rename = "hostId", default)]
    pub host_id: Option<Box<str>>,
    #[serde(rename = "OS-EXT-AZ:availability_zone", default)]
    pub zone: Option<Box<str>>,
    #[serde(rename = "os-extended-volumes:volumes_attached", default)]
    pub volumes: Vec<ServerVolume>,
    #[serde(default)]
    pub fault: Option<Fault>,
    /// When it was last changed, by the clock of the cloud.
    #[serde(default)]
    pub updated: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Address {
    #[serde(default)]
    pub addr: Box<str>,
    #[serde(default)]
    pub version: u8,
    #[serde(rename = "OS-EXT-IPS:type", default)]
    pub kind: Option<Box<str>>,
    #[serde(rename = "OS-EXT-IPS-MAC:mac_addr", default)]
    pub mac: Option<Box<str>>,
}

impl Address {
    pub fn is_floating(&self) -> bool {
        self.kind.as_deref() == Some("floating")
    }

    pub fn is_fixed(&self) -> bool {
        self.kind.as_deref() == Some("fixed")
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct FlavorRef {
    #[serde(default)]
    pub id: Option<Box<str>>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ServerVolume {
    pub id: Box<str>,
    #[serde(default)]
    pub delete_on_termination: bool,
}

/// Why a server is in error.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Fault {
    #[serde(default)]
    pub message: Box<str>,
    /// For administrators only, most of the time.
    #[serde(default)]
    pub details: Option<Box<str>>,
}

impl Server {
    pub fn image_id(&self) -> Option<&str> {
        self.image.get("id")?.as_str()
    }

    pub fn is_active(&self) -> bool {
        &*self.status == "ACTIVE"
    }

    /// Whether it will never be active.
    pub fn is_broken(&self) -> bool {
        &*self.status == "ERROR"
    }

    /// Whether it is deleted. It counts in the quota until it is no longer listed; some clouds list it for a while.
    pub fn is_gone(&self) -> bool {
        self.status.eq_ignore_ascii_case("deleted")
            || self.status.eq_ignore_ascii_case("soft_deleted")
    }

    pub fn is_going(&self) -> bool {
        self.task_state.as_deref() == Some("deleting")
    }

    /// The metadata that is text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.metadata.iter();
        texts.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }
}

/// A server to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewServer {
    pub name: String,
    pub flavor: Box<str>,
    pub image: Box<str>,
    /// Boots from a volume with a copy of the image.
    pub volume: Option<BootVolume>,
    pub key_name: Option<Box<str>>,
    pub zone: Option<Box<str>>,
    /// Ids. If empty, Nova uses the only network that exists.
    pub networks: Vec<Box<str>>,
    pub security_groups: Vec<Box<str>>,
    /// Not encoded.
    pub user_data: Option<Box<str>>,
    pub config_drive: Option<bool>,
    pub metadata: BTreeMap<String, String>,
}

/// The volume is deleted with its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootVolume {
    pub gigabytes: u64,
}

impl NewServer {
    fn to_json(&self) -> Value {
        #[derive(Serialize)]
        struct Body<'s> {
            name: &'s str,
            #[serde(rename = "flavorRef")]
            flavor: &'s str,
            #[serde(rename = "imageRef")]
            image: &'s str,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            block_device_mapping_v2: Vec<Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            key_name: Option<&'s str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            availability_zone: Option<&'s str>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            networks: Vec<Value>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            security_groups: Vec<Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            user_data: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            config_drive: Option<bool>,
            metadata: &'s BTreeMap<String, String>,
        }
        let volume = self.volume.map(|volume| {
            json!({
                "boot_index": "0",
                "source_type": "image",
                "uuid": self.image,
                "destination_type": "volume",
                "volume_size": volume.gigabytes,
                "delete_on_termination": true,
            })
        });
        let user_data = self.user_data.as_deref();
        json!({"server": Body {
            name: &self.name,
            flavor: &self.flavor,
            image: if volume.is_some() { "" } else { &self.image },
            block_device_mapping_v2: volume.into_iter().collect(),
            key_name: self.key_name.as_deref(),
            availability_zone: self.zone.as_deref(),
            networks: self.networks.iter().map(|id| json!({"uuid": id})).collect(),
            security_groups: self.security_groups.iter().map(|name| json!({"name": name})).collect(),
            user_data: user_data.map(|text| BASE64_STANDARD.encode(text)),
            config_drive: self.config_drive,
            metadata: &self.metadata,
        }})
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Flavor {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Box<str>,
    /// In MiB.
    #[serde(default)]
    pub ram: i64,
    #[serde(default)]
    pub vcpus: i64,
    /// In GiB.
    #[serde(default)]
    pub disk: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Zone {
    #[serde(rename = "zoneName")]
    pub name: Box<str>,
    #[serde(rename = "zoneState", default)]
    state: Option<ZoneState>,
}

#[derive(Debug, Clone, Deserialize)]
struct ZoneState {
    #[serde(default)]
    available: bool,
}

impl Zone {
    pub fn is_available(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.available)
    }
}

/// The quota of a project; -1 is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ComputeLimits {
    #[serde(rename = "maxTotalCores")]
    pub cores: i64,
    #[serde(rename = "maxTotalInstances")]
    pub instances: i64,
    /// In MiB.
    #[serde(rename = "maxTotalRAMSize")]
    pub ram: i64,
}

#[derive(Deserialize)]
struct Wrapped {
    server: Server,
}

impl Compute {
    pub fn new(session: Session) -> Self {
        Self(session)
    }

    fn call(&self, method: Method, what: impl Into<Box<str>>) -> Call<'_> {
        self.0.call(Service::Compute, method, what)
    }

    /// Lists all servers of the project, including those that are being deleted.
    pub async fn servers(&self) -> Result<Vec<Server>, Error> {
        let call = self.call(Method::GET, "list servers");
        call.path(["servers", "detail"]).list("servers").await
    }

    /// Lists the servers of the project that were changed since `time`, including those that were deleted.
    pub async fn servers_changed_since(&self, time: &str) -> Result<Vec<Server>, Error> {
        let call = self.call(Method::GET, "list changed servers");
        let call = call.path(["servers", "detail"]);
        call.query("changes-since", time).list("servers").await
    }

    pub async fn server(&self, id: &str) -> Result<Option<Server>, Error> {
        let call = self.call(Method::GET, format!("show server {id}"));
        let found: Option<Wrapped> = call.path(["servers", id]).json_if_found().await?;
        Ok(found
            .map(|found| found.server)
            .filter(|server| !server.is_gone()))
    }

    /// Starts to create a server and returns its id. If the response is lost, the server is found by its metadata.
    pub async fn create_server(&self, server: &NewServer) -> Result<Box<str>, Error> {
        #[derive(Deserialize)]
        struct Created {
            server: Id,
        }
        #[derive(Deserialize)]
        struct Id {
            id: Box<str>,
        }
        let call = self.call(Method::POST, format!("create server {}", server.name));
        let created: Created = call
            .path(["servers"])
            .body(&server.to_json())
            .json()
            .await?;
        Ok(created.server.id)
    }

    /// Starts to delete a server.
    pub async fn delete_server(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::DELETE, format!("delete server {id}"));
        call.path(["servers", id]).send_ignoring_missing().await
    }

    /// Returns the end of a server's console output.
    pub async fn console(&self, id: &str) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        struct Console {
            #[serde(default)]
            output: Option<String>,
        }
        let call = self.call(Method::POST, format!("show the console of server {id}"));
        let body = json!({"os-getConsoleOutput": {"length": CONSOLE_LINES}});
        let call = call
            .path(["servers", id, "action"])
            .body(&body)
            .repeatable();
        let console: Option<Console> = call.json_if_found().await?;
        Ok(console.and_then(|console| console.output))
    }

    /// Lists the flavors that the project may use, including public ones.
    pub async fn flavors(&self) -> Result<Vec<Flavor>, Error> {
        let call = self.call(Method::GET, "list flavors");
        call.path(["flavors", "detail"]).list("flavors").await
    }

    pub async fn zones(&self) -> Result<Vec<Zone>, Error> {
        let call = self.call(Method::GET, "list availability zones");
        call.path(["os-availability-zone"])
            .list("availabilityZoneInfo")
            .await
    }

    /// Lists the names of the user's key pairs.
    pub async fn key_names(&self) -> Result<Vec<Box<str>>, Error> {
        #[derive(Deserialize)]
        struct Entry {
            keypair: KeyPair,
        }
        #[derive(Deserialize)]
        struct KeyPair {
            name: Box<str>,
        }
        let call = self.call(Method::GET, "list key pairs");
        let entries: Vec<Entry> = call.path(["os-keypairs"]).list("keypairs").await?;
        Ok(entries
            .into_iter()
            .map(|entry| entry.keypair.name)
            .collect())
    }

    pub async fn limits(&self) -> Result<ComputeLimits, Error> {
        #[derive(Deserialize)]
        struct LimitsResponse {
            limits: Limits,
        }
        #[derive(Deserialize)]
        struct Limits {
            absolute: ComputeLimits,
        }
        let call = self.call(Method::GET, "show the limits of the project");
        let answer: LimitsResponse = call.path(["limits"]).json().await?;
        Ok(answer.limits.absolute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_sent() {
        let plain = NewServer {
            name: "np0000000001".to_owned(),
            flavor: "f".into(),
            image: "i".into(),
            ..NewServer::default()
        };
        assert_eq!(
            plain.to_json(),
            json!({"server": {"name": "np0000000001", "flavorRef": "f", "imageRef": "i", "metadata": {}}})
        );
        let full = NewServer {
            volume: Some(BootVolume { gigabytes: 50 }),
            networks: vec!["n".into()],
            security_groups: vec!["s".into()],
            user_data: Some("#cloud-config".into()),
            config_drive: Some(true),
            ..plain
        };
        let server = &full.to_json()["server"];
        assert_eq!(server["imageRef"], "");
        assert_eq!(server["block_device_mapping_v2"][0]["uuid"], "i");
        assert_eq!(
            server["block_device_mapping_v2"][0]["delete_on_termination"],
            true
        );
        assert_eq!(server["networks"], json!([{"uuid": "n"}]));
        assert_eq!(server["security_groups"], json!([{"name": "s"}]));
        assert_eq!(server["user_data"], "I2Nsb3VkLWNvbmZpZw==");
        assert_eq!(server["config_drive"], true);
    }
}
