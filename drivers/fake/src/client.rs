//! Typed calls: what the driver sends, what it reads of the answers, and what errors mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_driver::{CloudImage, Error, ErrorClass, ExternalId, ImageStatus, RateLimiter, Tags};
use nodeyard_model::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

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
    volumes: Option<Vec<Identified>>,
    #[serde(default)]
    flavor: Option<Identified>,
    /// An empty text for servers that boot from a volume.
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

/// Something that is named by its id, bare or in an object.
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
    /// What an upload brought along is here on some clouds, under `properties` on others.
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

/// The cloud, as the driver calls it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) limiter: RateLimiter,
    pub(crate) timeout: Duration,
    pub(crate) servers: SharedList,
}

/// The last list of all servers, for all who look for theirs at the same time: after a restart that is
/// everybody, and the list is long.
#[derive(Debug, Default)]
pub(crate) struct SharedList {
    begun: AtomicU64,
    /// With its number in the order of beginnings.
    last: Mutex<(u64, Arc<[Server]>)>,
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

    /// All servers, as they were at some time after this call began.
    pub(crate) async fn list_servers(&self) -> Result<Arc<[Server]>, Error> {
        let begun_before = self.servers.begun.load(Ordering::SeqCst);
        let mut last = self.servers.last.lock().await;
        if last.0 <= begun_before {
            let number = self.servers.begun.fetch_add(1, Ordering::SeqCst) + 1;
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
        // What was known of zones, flavors or images was out of date.
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
    fn clouds_that_say_less_are_understood() {
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

    /// Answers lists when it is let.
    #[derive(Debug)]
    struct Slow {
        lists: AtomicUsize,
        let_go: Semaphore,
    }

    #[async_trait]
    impl Transport for Slow {
        async fn call(&self, _: &str, _: Vec<u8>) -> Result<Box<RawValue>, CallError> {
            self.lists.fetch_add(1, Ordering::SeqCst);
            let _permit = self.let_go.acquire().await;
            to_raw_value(&json!([])).map_err(CallError::Garbled)
        }
    }

    #[tokio::test]
    async fn those_who_ask_during_a_list_share_the_next_one() {
        let slow = Arc::new(Slow {
            lists: AtomicUsize::new(0),
            let_go: Semaphore::new(0),
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
        // One thread: when this comes back, all of them wait.
        tokio::task::yield_now().await;
        slow.let_go.add_permits(1);
        for task in asked {
            assert_eq!(task.await.unwrap().unwrap(), 0);
        }
        assert_eq!(slow.lists.load(Ordering::SeqCst), 2);
        // Nobody gets a list that began before they asked.
        ask().await.unwrap().unwrap();
        assert_eq!(slow.lists.load(Ordering::SeqCst), 3);
    }
}
