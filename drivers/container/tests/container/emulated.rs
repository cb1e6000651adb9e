//! A container runtime in memory that responds to the calls of the driver like Docker.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use http_body_util::BodyExt;
use nodeyard_driver_container::{
    RuntimeCall, RuntimeCallBody, RuntimeCallError, RuntimeResponse, RuntimeTransport,
};
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(crate) struct EmulatedRuntime(Mutex<Things>);

#[derive(Debug, Default)]
struct Things {
    containers: BTreeMap<String, Value>,
    images: BTreeMap<String, Value>,
    made: usize,
}

impl Things {
    fn new_id(&mut self) -> String {
        self.made += 1;
        format!("{:064x}", self.made)
    }
}

impl EmulatedRuntime {
    pub(crate) fn with_image(name: &str) -> Self {
        let runtime = Self::default();
        runtime.import(name, &json!({}));
        runtime
    }

    fn import(&self, name: &str, labels: &Value) -> String {
        let mut things = self.0.lock().unwrap();
        let id = format!("sha256:{}", things.new_id());
        let name = format!("{name}:latest");
        // A name moves to the newest image that has it.
        for image in things.images.values_mut() {
            image["RepoTags"] = json!(
                image["RepoTags"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|tag| **tag != name)
                    .collect::<Vec<_>>()
            );
        }
        let image = json!({"Id": id, "RepoTags": [name], "Labels": labels, "Created": things.made});
        things.images.insert(id.clone(), image);
        id
    }

    pub(crate) fn create(&self, name: &str, body: &Value) -> Option<String> {
        let mut things = self.0.lock().unwrap();
        let taken = |container: &Value| !name.is_empty() && container["Names"][0] == json!(name);
        if things.containers.values().any(taken) {
            return None;
        }
        let id = things.new_id();
        let container = json!({
            "Id": id, "Names": [name], "State": "created", "Labels": body["Labels"], "ImageID": body["Image"],
        });
        things.containers.insert(id.clone(), container);
        Some(id)
    }

    /// Lists everything that exists, one line each.
    pub(crate) fn exists(&self) -> Vec<String> {
        let things = self.0.lock().unwrap();
        let containers = things.containers.values();
        let containers = containers.map(|container| format!("container {}", container["Id"]));
        let images = things.images.values();
        let images = images.map(|image| format!("image {} {}", image["Id"], image["RepoTags"]));
        containers.chain(images).collect()
    }

    fn respond(&self, method: &str, path: &[&str], query: &str) -> (u16, Value) {
        let missing = (404, json!({"message": "no such thing"}));
        let mut things = self.0.lock().unwrap();
        match (method, path) {
            ("GET", ["info"]) => (
                200,
                json!({
                    "NCPU": 8, "MemTotal": 8_i64 << 30, "MemoryLimit": true, "CpuCfsQuota": true,
                    "PidsLimit": true, "ServerVersion": "1", "Name": "here",
                }),
            ),
            ("GET", ["containers", "json"]) => (200, things.containers.values().cloned().collect()),
            ("GET", ["containers", id, "json"]) => match things.containers.get(*id) {
                Some(container) => (
                    200,
                    json!({
                        "State": {"Status": container["State"]},
                        "NetworkSettings": {"Ports": {"22/tcp": [{"HostPort": "4711"}]}},
                    }),
                ),
                None => missing,
            },
            ("POST", ["containers", id, "start"]) => match things.containers.get_mut(*id) {
                Some(container) if container["State"] == "running" => (304, Value::Null),
                Some(container) => {
                    container["State"] = "running".into();
                    (204, Value::Null)
                }
                None => missing,
            },
            ("HEAD" | "PUT", ["containers", id, "archive"]) => {
                let there = things.containers.contains_key(*id);
                (if there { 200 } else { 404 }, Value::Null)
            }
            ("DELETE", ["containers", id]) => match things.containers.remove(*id) {
                Some(_) => (204, Value::Null),
                None => missing,
            },
            ("GET", ["images", "json"]) => (200, things.images.values().cloned().collect()),
            ("GET", ["images", _, "json"]) => (200, json!({"Config": {}})),
            ("DELETE", ["images", name @ ..]) => {
                let name = name.join("/");
                let named = |image: &Value| {
                    image["RepoTags"][0] == json!(name) || image["Id"] == json!(name)
                };
                let found = things.images.values().find(|image| named(image));
                match found.map(|image| image["Id"].as_str().unwrap().to_owned()) {
                    Some(id) => {
                        things.images.remove(&id);
                        (200, json!([]))
                    }
                    None => missing,
                }
            }
            _ => panic!("{method} {path:?} {query}"),
        }
    }
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let byte = u8::from_str_radix(&part[..2], 16).unwrap();
        out.push(char::from(byte));
        out.push_str(&part[2..]);
    }
    out
}

fn parameter(query: &str, key: &str) -> String {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.into_iter().find(|(name, _)| *name == key);
    decoded(found.map_or("", |(_, value)| value))
}

/// An archive with accounts, or with what is in an empty directory.
fn archive(query: &str) -> RuntimeResponse {
    let mut builder = tar::Builder::new(Vec::new());
    if query.ends_with("passwd") {
        let content = b"root:x:0:0::/root:/bin/sh\n";
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        builder
            .append_data(&mut header, "passwd", &content[..])
            .unwrap();
    }
    let body = builder.into_inner().unwrap().into();
    RuntimeResponse { status: 200, body }
}

#[async_trait]
impl RuntimeTransport for EmulatedRuntime {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let (path, query) = call.uri.split_once('?').unwrap_or((&call.uri, ""));
        let path: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let json_response = |status, value: Value| RuntimeResponse {
            status,
            body: value.to_string().into(),
        };
        Ok(match (call.method.as_str(), &path[..], call.body) {
            ("POST", ["containers", "create"], RuntimeCallBody::Json(body)) => {
                let body = serde_json::from_slice(&body).unwrap();
                match self.create(&parameter(query, "name"), &body) {
                    Some(id) => json_response(201, json!({"Id": id})),
                    None => json_response(409, json!({"message": "the name is already in use"})),
                }
            }
            ("POST", ["images", "create"], RuntimeCallBody::Stream(body)) => {
                body.collect()
                    .await
                    .map_err(|cause| RuntimeCallError::Disconnected(Some(cause.into())))?;
                let change = parameter(query, "changes");
                let (key, value) = change
                    .strip_prefix("LABEL ")
                    .unwrap()
                    .split_once('=')
                    .unwrap();
                let id = self.import(&parameter(query, "repo"), &json!({key: value}));
                json_response(200, json!({"status": id}))
            }
            ("GET", ["containers", _, "archive"], _) => archive(query),
            (method, path, _) => {
                let (status, value) = self.respond(method, path, query);
                json_response(status, value)
            }
        })
    }
}
