//! Typed calls: what the driver sends, what it reads of the answers, and what errors mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{CloudImage, Error, ErrorClass, ExternalId, ImageStatus, RateLimiter, Tags};
use nodeyard_model::{Resources, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cloud::CloudError;
use crate::transport::{CallError, Transport};

/// Only what a driver looks at.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: String,
    #[serde(rename = "hostId", default)]
    pub(crate) host_id: Option<Box<str>>,
    #[serde(rename = "OS-EXT-AZ:availability_zone", default)]
    pub(crate) zone: Option<Box<str>>,
    #[serde(rename = "OS-EXT-STS:task_state", default)]
    task_state: Option<String>,
    #[serde(rename = "os-extended-volumes:volumes_attached", default)]
    pub(crate) volumes: Vec<Identified>,
    pub(crate) flavor: Identified,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    addresses: Option<BTreeMap<String, Vec<Address>>>,
    #[serde(default)]
    pub(crate) public_v4: Option<String>,
    #[serde(default)]
    pub(crate) public_v6: Option<String>,
    #[serde(default)]
    pub(crate) private_v4: Option<String>,
    #[serde(default)]
    pub(crate) interface_ip: Option<String>,
    #[serde(default)]
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Identified {
    pub(crate) id: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    addr: String,
    #[serde(rename = "OS-EXT-IPS:type", default)]
    kind: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Fault {
    #[serde(default)]
    message: Option<String>,
}

impl Server {
    pub(crate) fn tags(&self) -> Tags {
        Tags::from_metadata(self.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    pub(crate) fn is_active(&self) -> bool {
        self.status == "ACTIVE"
    }

    /// It will never be active.
    pub(crate) fn is_broken(&self) -> bool {
        self.status == "ERROR"
    }

    /// Some clouds show what is gone for a while.
    pub(crate) fn is_gone(&self) -> bool {
        self.status.eq_ignore_ascii_case("deleted")
    }

    pub(crate) fn is_going(&self) -> bool {
        self.task_state.as_deref() == Some("deleting")
    }

    pub(crate) fn has_floating_ip(&self) -> bool {
        let addresses = self.addresses.iter().flat_map(BTreeMap::values).flatten();
        addresses
            .into_iter()
            .any(|address| address.kind.as_deref() == Some("floating") && !address.addr.is_empty())
    }

    /// Why it is broken, in the cloud's words.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_ref()?.message.as_deref()
    }

    /// The error that a broken server is.
    pub(crate) fn failure(&self) -> Error {
        let fault = self.fault().unwrap_or("the cloud gives no reason");
        let text = format!("server {} ({}) is in error: {fault}", self.id, self.name);
        Error::new(fault_class(fault), text)
    }
}

fn fault_class(fault: &str) -> ErrorClass {
    let fault = fault.to_lowercase();
    if fault.contains("quota") {
        ErrorClass::Quota
    } else if fault.contains("no valid host") {
        ErrorClass::Capacity
    } else {
        ErrorClass::Retry
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Flavor {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) ram: i64,
    pub(crate) vcpus: i64,
}

impl Flavor {
    /// What one server of it takes, with volumes of these sizes.
    pub(crate) fn takes(&self, volumes: impl IntoIterator<Item = i64>) -> Resources {
        let mut takes = Resources::new(self.vcpus, 1, self.ram);
        let (mut count, mut size) = (0_i64, 0_i64);
        for gigabytes in volumes {
            count += 1;
            size = size.saturating_add(gigabytes);
        }
        if count > 0 {
            takes.set("volumes".into(), count);
            takes.set("volume-gb".into(), size);
        }
        takes
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Network {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) nat_destination: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) size: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Port {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) device_owner: Option<String>,
    #[serde(default)]
    pub(crate) device_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FloatingIp {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) port_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pub(crate) id: String,
    #[serde(default)]
    name: Option<Box<str>>,
    #[serde(default)]
    status: String,
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    tags: Vec<Box<str>>,
    #[serde(default)]
    properties: BTreeMap<String, Value>,
}

impl Image {
    pub(crate) fn into_cloud_image(self) -> CloudImage {
        let status = match self.status.to_lowercase().as_str() {
            "active" | "ready" => ImageStatus::Active,
            "queued" | "saving" | "uploading" | "importing" => ImageStatus::Pending,
            _ => ImageStatus::Failed,
        };
        let created = self.created_at.and_then(|text| {
            let time: jiff::Timestamp = text.parse().ok()?;
            Timestamp::from_secs(time.as_microsecond() as f64 / 1e6)
        });
        let properties = self.properties.into_iter().map(|(key, value)| match value {
            Value::String(text) => (key, text),
            other => (key, other.to_string()),
        });
        CloudImage {
            id: self.id.as_str().into(),
            name: self.name.unwrap_or_default(),
            status,
            created,
            properties: properties.collect(),
            marks: self.tags,
        }
    }
}

/// The cloud, as the driver calls it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) limiter: RateLimiter,
    pub(crate) timeout: Duration,
}

/// An error of a call, with the server it left half made.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: Error,
    /// What was cached of the cloud's catalog is not true any more.
    pub(crate) stale: bool,
    pub(crate) half_made: Option<ExternalId>,
}

impl From<CallFailure> for Error {
    fn from(failure: CallFailure) -> Self {
        failure.error
    }
}

impl Client {
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        arguments: Value,
    ) -> Result<T, CallFailure> {
        self.limiter.turn().await;
        let call = self
            .transport
            .call(method, arguments.to_string().into_bytes());
        let raw = tokio::time::timeout(self.timeout, call)
            .await
            .unwrap_or(Err(CallError::NoAnswer(None)))
            .map_err(|error| failure(method, error))?;
        serde_json::from_str(raw.get()).map_err(|error| failure(method, CallError::Garbled(error)))
    }

    pub(crate) async fn get_server(&self, id: &str) -> Result<Option<Server>, Error> {
        let server: Option<Server> = self.call("get_server", json!({"id": id})).await?;
        Ok(server.filter(|server| !server.is_gone()))
    }

    pub(crate) async fn delete_server(&self, id: &str) -> Result<(), Error> {
        let _nothing: Value = self.call("delete_server", json!({"id": id})).await?;
        Ok(())
    }

    /// All, or those of a name. A cloud that does not know the filter lists all.
    pub(crate) async fn list_servers(&self, name: Option<&str>) -> Result<Vec<Server>, Error> {
        let arguments = name.map_or_else(|| json!({}), |name| json!({"name": name}));
        let mut servers: Vec<Server> = self.call("list_servers", arguments).await?;
        servers.retain(|server| !server.is_gone() && name.is_none_or(|name| server.name == name));
        Ok(servers)
    }

    pub(crate) async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        let images: Vec<Image> = self.call("list_images", json!({})).await?;
        Ok(images.into_iter().map(Image::into_cloud_image).collect())
    }

    pub(crate) async fn get_image(&self, name_or_id: &str) -> Result<Option<CloudImage>, Error> {
        let image: Option<Image> = self
            .call("get_image", json!({"name_or_id": name_or_id}))
            .await?;
        Ok(image.map(Image::into_cloud_image))
    }

    pub(crate) async fn delete_image(&self, id: &str) -> Result<(), Error> {
        let _nothing: Value = self.call("delete_image", json!({"id": id})).await?;
        Ok(())
    }

    pub(crate) async fn delete(&self, method: &str, id: &str) -> Result<(), Error> {
        let _nothing: Value = self.call(method, json!({"id": id})).await?;
        Ok(())
    }
}

fn failure(method: &str, error: CallError) -> CallFailure {
    let CallError::Refused(refusal) = error else {
        let text = format!("{method} of the simulated cloud failed");
        return CallFailure {
            error: Error::retry(text).because(error),
            stale: false,
            half_made: None,
        };
    };
    let class = refusal_class(&refusal);
    let text = format!("the simulated cloud refused {method}: {}", refusal.message);
    CallFailure {
        error: Error::new(class, text),
        stale: refusal.class == CloudError::BAD_REQUEST,
        half_made: refusal.resource_id.as_deref().map(ExternalId::from),
    }
}

fn refusal_class(refusal: &CloudError) -> ErrorClass {
    let message = refusal.message.to_lowercase();
    if message.contains("quota exceeded") || message.contains("number of ports exceeded") {
        return ErrorClass::Quota;
    }
    if message.contains("no valid host") {
        return ErrorClass::Capacity;
    }
    match refusal.status {
        // What was known of zones, flavors or images was out of date: look again, try again.
        400 if refusal.class == CloudError::BAD_REQUEST => ErrorClass::Retry,
        401 | 403 => ErrorClass::Credentials,
        408 | 409 | 429 => ErrorClass::Retry,
        400..=499 => ErrorClass::Permanent,
        _ => ErrorClass::Retry,
    }
}
