//! Typed calls of the simulated cloud, its responses, and the classes of its errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_driver::{
    CallClass, CloudImage, Error, ErrorClass, ExternalId, ImageStatus, RateLimiter, Tags,
};
use nodeyard_model::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::cloud::CloudError;
use crate::transport::{CallError, Transport};

/// The part of a server that the driver uses.
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
    volumes: Option<Vec<Identified>>,
    #[serde(default)]
    flavor: Option<Identified>,
    /// An empty text if the server boots from a volume.
    #[serde(default)]
    image: Value,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
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

/// A reference by id, bare or in an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Identified {
    Bare(String),
    Object { id: String },
}

impl Identified {
    fn id(&self) -> &str {
        match self {
            Self::Bare(id) | Self::Object { id } => id,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    #[serde(default)]
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
        let texts = self.metadata.iter().flatten();
        Tags::from_metadata(texts.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))))
    }

    pub(crate) fn flavor_id(&self) -> Option<&str> {
        self.flavor.as_ref().map(Identified::id)
    }

    pub(crate) fn image_id(&self) -> Option<&str> {
        self.image.get("id")?.as_str()
    }

    pub(crate) fn volume_ids(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().flatten().map(Identified::id)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.status == "ACTIVE"
    }

    /// Whether it will never be active.
    pub(crate) fn is_broken(&self) -> bool {
        self.status == "ERROR"
    }

    /// Whether it was deleted. Some clouds list deleted servers for a while.
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

    /// Returns the reason for its status, in the words of the cloud.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_ref()?.message.as_deref()
    }

    /// Returns the error that a broken server stands for.
    pub(crate) fn failure(&self) -> Error {
        let fault = self.fault().unwrap_or("no reason given");
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
        ErrorClass::Failed
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Flavor {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) ram: i64,
    pub(crate) vcpus: i64,
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
    status: Option<String>,
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    tags: Option<Vec<Box<str>>>,
    #[serde(default)]
    properties: Option<Map<String, Value>>,
    /// Metadata of the upload is here on some clouds, under `properties` on others.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Image {
    pub(crate) fn into_cloud_image(self) -> CloudImage {
        let status = self.status.unwrap_or_default().to_lowercase();
        let status = match status.as_str() {
            "active" | "ready" => ImageStatus::Active,
            "killed" | "error" | "failed" | "deleted" | "pending_delete" | "deactivated" => {
                ImageStatus::Failed
            }
            _ => ImageStatus::Pending,
        };
        let created = self.created_at.and_then(|text| {
            let time: jiff::Timestamp = text.parse().ok()?;
            Timestamp::from_secs(time.as_microsecond() as f64 / 1e6)
        });
        let properties = self
            .others
            .into_iter()
            .chain(self.properties.into_iter().flatten());
        let properties = properties.map(|(key, value)| match value {
            Value::String(text) => (key, text),
            other => (key, other.to_string()),
        });
        CloudImage {
            id: self.id.as_str().into(),
            name: self.name.unwrap_or_default(),
            status,
            created,
            properties: properties.collect(),
            marks: self.tags.unwrap_or_default(),
        }
    }
}

/// Calls a cloud: limits the rate, parses responses, classifies errors.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) limiter: RateLimiter,
    pub(crate) timeout: Duration,
    pub(crate) servers: SharedList,
}

/// The last list of all servers, shared by concurrent callers: after a restart all operations look for their servers
/// at the same time.
#[derive(Debug, Default)]
pub(crate) struct SharedList {
    /// How many lists were started.
    started: AtomicU64,
    /// With its number in the order of starts.
    last: Mutex<(u64, Arc<[Server]>)>,
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: Error,
    /// The cached catalog is outdated.
    pub(crate) stale: bool,
    /// A server that was created in part.
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
        self.limiter.turn(call_class(method)).await;
        let call = self
            .transport
            .call(method, arguments.to_string().into_bytes());
        let raw = tokio::time::timeout(self.timeout, call)
            .await
            .unwrap_or(Err(CallError::NoResponse(None)))
            .map_err(|error| failure(method, error))?;
        serde_json::from_str(raw.get())
            .map_err(|error| failure(method, CallError::Malformed(error)))
    }

    pub(crate) async fn get_server(&self, id: &str) -> Result<Option<Server>, Error> {
        let server: Option<Server> = self.call("get_server", json!({"id": id})).await?;
        Ok(server.filter(|server| !server.is_gone()))
    }

    pub(crate) async fn delete_server(&self, id: &str) -> Result<(), Error> {
        let _nothing: Value = self.call("delete_server", json!({"id": id})).await?;
        Ok(())
    }

    /// Lists all servers, as they were at some time after this call began.
    pub(crate) async fn list_servers(&self) -> Result<Arc<[Server]>, Error> {
        let started_before = self.servers.started.load(Ordering::SeqCst);
        let mut last = self.servers.last.lock().await;
        if last.0 <= started_before {
            let number = self.servers.started.fetch_add(1, Ordering::SeqCst) + 1;
            let mut servers: Vec<Server> = self.call("list_servers", json!({})).await?;
            servers.retain(|server| !server.is_gone());
            *last = (number, servers.into());
        }
        Ok(Arc::clone(&last.1))
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

fn call_class(method: &str) -> CallClass {
    match method.split_once('_') {
        Some(("create", _)) => CallClass::Create,
        Some(("delete", _)) => CallClass::Delete,
        _ => CallClass::Read,
    }
}

fn failure(method: &str, error: CallError) -> CallFailure {
    let CallError::Refused(refusal) = error else {
        let text = format!("failed to call {method} of the simulated cloud");
        return CallFailure {
            error: Error::retry(text).because(error),
            stale: false,
            half_made: None,
        };
    };
    let class = refusal_class(&refusal);
    let text = format!("simulated cloud refused {method}: {}", refusal.message);
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
        // The cached zones, flavors or images are outdated.
        400 if refusal.class == CloudError::BAD_REQUEST => ErrorClass::Failed,
        401 | 403 => ErrorClass::Credentials,
        408 | 409 | 429 => ErrorClass::Retry,
        400..=499 => ErrorClass::Permanent,
        502..=504 => ErrorClass::Retry,
        _ => ErrorClass::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use async_trait::async_trait;
    use serde_json::value::{RawValue, to_raw_value};
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn optional_fields_may_be_missing() {
        let bare: Server =
            serde_json::from_value(json!({"id": "a", "name": "n", "status": "ACTIVE"})).unwrap();
        assert!(bare.is_active() && bare.tags() == Tags::default());
        let nulls: Server = serde_json::from_value(json!({
            "id": "a", "name": "n", "status": "BUILD", "addresses": null, "metadata": null,
            "flavor": null, "os-extended-volumes:volumes_attached": null, "fault": null,
            "public_v4": null, "OS-EXT-AZ:availability_zone": null,
        }))
        .unwrap();
        assert!(!nulls.is_active() && nulls.flavor_id().is_none());
        let odd: Server = serde_json::from_value(json!({
            "id": "a", "name": "n", "status": "ERROR", "adminPass": "x",
            "metadata": {"n": 1, "nodepool_node_id": "0000000001"},
            "addresses": {"public": [{"version": 4, "addr": "fake"}]}, "flavor": {"id": "f", "ram": 1},
            "fault": {"message": "Request exceeds quota"},
        }))
        .unwrap();
        assert!(odd.tags().node.is_some());
        assert_eq!(odd.failure().class(), ErrorClass::Quota);
    }

    #[test]
    fn images_may_carry_their_metadata_in_two_places() {
        for image in [
            json!({"id": "a", "status": "READY", "nodepool_upload_id": "0000000001"}),
            json!({"id": "a", "status": "active", "properties": {"nodepool_upload_id": "0000000001"}}),
        ] {
            let image: Image = serde_json::from_value(image).unwrap();
            let image = image.into_cloud_image();
            assert!(image.tags().upload.is_some());
            assert_eq!(image.status, ImageStatus::Active);
        }
    }

    /// Returns lists when permitted.
    #[derive(Debug)]
    struct SlowTransport {
        lists: AtomicUsize,
        permits: Semaphore,
    }

    #[async_trait]
    impl Transport for SlowTransport {
        async fn call(&self, _: &str, _: Vec<u8>) -> Result<Box<RawValue>, CallError> {
            self.lists.fetch_add(1, Ordering::SeqCst);
            let _permit = self.permits.acquire().await;
            to_raw_value(&json!([])).map_err(CallError::Malformed)
        }
    }

    #[tokio::test]
    async fn callers_that_come_during_a_list_share_the_next_one() {
        let slow = Arc::new(SlowTransport {
            lists: AtomicUsize::new(0),
            permits: Semaphore::new(0),
        });
        let client = Arc::new(Client {
            transport: Arc::clone(&slow) as Arc<dyn Transport>,
            limiter: RateLimiter::unlimited(),
            timeout: Duration::from_secs(60),
            servers: SharedList::default(),
        });
        let ask = || {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.list_servers().await.map(|list| list.len()) })
        };
        let mut asked = vec![ask()];
        while slow.lists.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        asked.extend((0..50).map(|_| ask()));
        // There is one thread: after this all of them wait.
        tokio::task::yield_now().await;
        slow.permits.add_permits(1);
        for task in asked {
            assert_eq!(task.await.unwrap().unwrap(), 0);
        }
        assert_eq!(slow.lists.load(Ordering::SeqCst), 2);
        // A caller never gets a list that started before its call.
        ask().await.unwrap().unwrap();
        assert_eq!(slow.lists.load(Ordering::SeqCst), 3);
    }
}
