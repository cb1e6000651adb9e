//! The calls of the Docker API that the driver needs, and what their answers say.
//!
//! Paths are without a version: each runtime then speaks its own current one, and Docker's newest servers refuse the
//! versions that the oldest understand. Answers are read leniently: states are texts, and what is absent or null is
//! nothing, for Podman has states of its own and leaves out other things than Docker does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use nodeyard_driver::{CloudImage, Error, ImageStatus, Tags, UploadOrder};
use nodeyard_model::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{garbled, refused, told, unanswered};
use crate::host::Info;
use crate::image_file;
use crate::transport::{Answer, Call, CallBody, Transport};

/// Gigabytes are unpacked and checked before there is an answer.
const IMPORT_LIMIT: Duration = Duration::from_secs(3600);
/// The label of an image that holds all that an upload gives it. It is one, and encoded, because Docker reads
/// the labels of an import as lines of a Dockerfile, with variables and quotes, and Podman reads them in another way.
const IMAGE_LABEL: &str = "nodeyard";

type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Container {
    pub(crate) id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<Labels>,
    #[serde(default)]
    state: String,
    #[serde(default, rename = "ImageID")]
    image: String,
}

impl Container {
    pub(crate) fn name(&self) -> Option<&str> {
        let name = self.names.as_ref()?.first()?;
        Some(name.trim_start_matches('/'))
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        Some(self.labels.as_ref()?.get(key)?.as_str())
    }

    pub(crate) fn tags(&self) -> Tags {
        let labels = self.labels.iter().flatten();
        Tags::from_metadata(labels.map(|(key, value)| (key.as_str(), value.as_str())))
    }

    /// Not started yet, or running: anything else has ended or is about to.
    pub(crate) fn is_usable(&self) -> bool {
        is_new(&self.state) || is_running(&self.state)
    }

    pub(crate) fn uses(&self, image: &str) -> bool {
        bare(&self.image) == bare(image)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Inspected {
    pub(crate) state: ContainerState,
    #[serde(default)]
    network_settings: NetworkSettings,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ContainerState {
    pub(crate) status: String,
    pub(crate) exit_code: i64,
    #[serde(rename = "OOMKilled")]
    pub(crate) out_of_memory: bool,
    pub(crate) error: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkSettings {
    #[serde(rename = "IPAddress")]
    address: Option<String>,
    ports: Option<BTreeMap<String, Option<Vec<Binding>>>>,
    networks: Option<BTreeMap<String, Network>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Network {
    #[serde(rename = "IPAddress")]
    address: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Binding {
    host_port: String,
}

impl Inspected {
    pub(crate) fn is_new(&self) -> bool {
        is_new(&self.state.status)
    }

    pub(crate) fn is_running(&self) -> bool {
        is_running(&self.state.status)
    }

    /// In words, for people.
    pub(crate) fn describe(&self) -> String {
        let state = &self.state;
        let mut text = format!("the container is {}", state.status);
        if !self.is_new() && !self.is_running() {
            text = format!("the container ended with exit code {}", state.exit_code);
        }
        if state.out_of_memory {
            text.push_str(", killed because it used up its memory");
        }
        if !state.error.is_empty() {
            text = format!("{text}: {}", state.error);
        }
        text
    }

    /// The port of the host that leads to `port` of the container.
    pub(crate) fn published(&self, port: u16) -> Option<u16> {
        let ports = self.network_settings.ports.as_ref()?;
        let bindings = ports.get(&format!("{port}/tcp"))?.as_ref()?;
        bindings.first()?.host_port.parse().ok()
    }

    pub(crate) fn address(&self) -> Option<&str> {
        let settings = &self.network_settings;
        let networks = settings.networks.iter().flat_map(BTreeMap::values);
        let addresses = networks.filter_map(|network| network.address.as_deref());
        let mut addresses = settings.address.as_deref().into_iter().chain(addresses);
        addresses.find(|address| !address.is_empty())
    }
}

/// Podman calls a container `initialized` for the moment before it runs.
fn is_new(state: &str) -> bool {
    matches!(state, "created" | "configured" | "initialized")
}

fn is_running(state: &str) -> bool {
    state == "running"
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Image {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) repo_tags: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<Labels>,
    #[serde(default)]
    created: i64,
}

impl Image {
    /// What `<none>:<none>` stands for has no name.
    pub(crate) fn references(&self) -> impl Iterator<Item = &str> {
        let tags = self.repo_tags.iter().flatten().map(String::as_str);
        tags.filter(|tag| !tag.contains("<none>"))
    }

    /// Short names mean those of Docker's registry, or what was made here.
    pub(crate) fn is_called(&self, reference: &str) -> bool {
        let reference = with_tag(reference);
        self.references().any(|tag| {
            tag == reference
                || ["docker.io/library/", "docker.io/", "localhost/"]
                    .iter()
                    .any(|place| tag.strip_prefix(place) == Some(&reference))
        })
    }

    /// By a whole id or the beginning of one, as people copy it.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        let id = bare(id);
        id.len() >= 12 && bare(&self.id).starts_with(id)
    }

    pub(crate) fn tags(&self) -> Tags {
        self.to_cloud_image().tags()
    }

    pub(crate) fn to_cloud_image(&self) -> CloudImage {
        let mut properties = self.labels.clone().unwrap_or_default();
        if let Some(ours) = properties.remove(IMAGE_LABEL) {
            properties.extend(decode_query(&ours));
        }
        let name = self.references().next().unwrap_or(&self.id);
        CloudImage {
            id: self.id.as_str().into(),
            name: name.into(),
            status: ImageStatus::Active,
            created: Timestamp::from_secs(self.created as f64),
            properties,
            marks: self.references().map(Into::into).collect(),
        }
    }
}

/// What an image does when nobody says otherwise.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ImageConfig {
    cmd: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
}

impl ImageConfig {
    pub(crate) fn has_command(&self) -> bool {
        [&self.cmd, &self.entrypoint]
            .into_iter()
            .any(|words| words.as_ref().is_some_and(|words| !words.is_empty()))
    }
}

/// Podman writes ids of images with and without it.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

pub(crate) fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains(':') || last.contains('@') {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

/// A runtime that is talked to.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) limit: Duration,
}

impl Engine {
    async fn call(
        &self,
        name: &'static str,
        method: Method,
        uri: String,
        body: CallBody,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let call = Call {
            name,
            method,
            uri,
            body,
            limit,
        };
        let answer = self.transport.call(call).await;
        answer.map_err(|error| unanswered(name, error))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: String,
    ) -> Result<Option<T>, Error> {
        let answer = self
            .call(name, Method::GET, uri, CallBody::Empty, self.limit)
            .await?;
        found(name, answer)?
            .map(|answer| read(name, &answer))
            .transpose()
    }

    async fn list<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: &str,
    ) -> Result<Vec<T>, Error> {
        let list = self.get(name, uri.to_owned()).await?;
        list.ok_or_else(|| {
            Error::retry(format!("the container runtime does not know how to {name}"))
        })
    }

    pub(crate) async fn info(&self) -> Result<Info, Error> {
        let name = "tell about itself";
        let info = self.get(name, "/info".to_owned()).await?;
        info.ok_or_else(|| {
            Error::permanent(
                "what listens at the socket is not a container runtime: set `socket` of the provider",
            )
        })
    }

    pub(crate) async fn containers(&self) -> Result<Vec<Container>, Error> {
        self.list("list containers", "/containers/json?all=true")
            .await
    }

    pub(crate) async fn inspect(&self, id: &str) -> Result<Option<Inspected>, Error> {
        let uri = format!("/containers/{}/json", encode(id));
        self.get("look at a container", uri).await
    }

    /// The id of the new container. None if the name is taken.
    pub(crate) async fn create(
        &self,
        name: Option<&str>,
        body: &Value,
    ) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Created {
            id: String,
        }
        let call = "create a container";
        let uri = match name {
            Some(name) => format!("/containers/create?name={}", encode(name)),
            None => "/containers/create".to_owned(),
        };
        let body = CallBody::Json(body.to_string().into());
        let answer = self.call(call, Method::POST, uri, body, self.limit).await?;
        if name.is_some() && is_name_conflict(&answer) {
            return Ok(None);
        }
        let created: Created = read(call, &accepted(call, answer)?)?;
        Ok(Some(created.id))
    }

    /// Also if it runs already.
    pub(crate) async fn start(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}/start", encode(id));
        let name = "start a container";
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, self.limit)
            .await?;
        match answer.status {
            304 => Ok(()),
            _ => accepted(name, answer).map(drop),
        }
    }

    /// Kills it first if it runs. Also if it is not there.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}?force=true&v=true", encode(id));
        let name = "remove a container";
        let answer = self
            .call(name, Method::DELETE, uri, CallBody::Empty, self.limit)
            .await?;
        found(name, answer).map(drop)
    }

    /// Returns when it does not run any more.
    pub(crate) async fn wait(&self, id: &str, limit: Duration) -> Result<(), Error> {
        let uri = format!("/containers/{}/wait?condition=not-running", encode(id));
        let name = "wait for a container";
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, limit)
            .await?;
        accepted(name, answer).map(drop)
    }

    /// The last lines of what it wrote.
    pub(crate) async fn logs(&self, id: &str, lines: u32) -> Result<String, Error> {
        let uri = format!(
            "/containers/{}/logs?stdout=true&stderr=true&tail={lines}",
            encode(id)
        );
        let name = "show the output of a container";
        let answer = self
            .call(name, Method::GET, uri, CallBody::Empty, self.limit)
            .await?;
        Ok(text_of_log(&accepted(name, answer)?.body))
    }

    /// A file or directory, as an archive.
    pub(crate) async fn take_out(&self, id: &str, path: &str) -> Result<Option<Bytes>, Error> {
        let name = "read a file of a container";
        let answer = self
            .call(
                name,
                Method::GET,
                archive_uri(id, path),
                CallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, answer)?.map(|answer| answer.body))
    }

    pub(crate) async fn has_path(&self, id: &str, path: &str) -> Result<bool, Error> {
        let name = "look for a file of a container";
        let answer = self
            .call(
                name,
                Method::HEAD,
                archive_uri(id, path),
                CallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, answer)?.is_some())
    }

    /// Unpacks an archive in `/`.
    pub(crate) async fn put_in(&self, id: &str, archive: Bytes) -> Result<(), Error> {
        let name = "put files into a container";
        let answer = self
            .call(
                name,
                Method::PUT,
                archive_uri(id, "/"),
                CallBody::Tar(archive),
                self.limit,
            )
            .await?;
        accepted(name, answer).map(drop)
    }

    pub(crate) async fn images(&self) -> Result<Vec<Image>, Error> {
        self.list("list images", "/images/json").await
    }

    pub(crate) async fn image_config(&self, id: &str) -> Result<Option<ImageConfig>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            config: Option<ImageConfig>,
        }
        let uri = format!("/images/{}/json", encode(id));
        let image: Option<Inspected> = self.get("look at an image", uri).await?;
        Ok(image.map(|image| image.config.unwrap_or_default()))
    }

    pub(crate) async fn pull(&self, reference: &str, limit: Duration) -> Result<(), Error> {
        let name = "pull an image";
        let uri = format!("/images/create?fromImage={}", encode(&with_tag(reference)));
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, limit)
            .await?;
        progress(name, &accepted(name, answer)?).map(drop)
    }

    /// Makes an image of a root file system archive; returns its id.
    pub(crate) async fn import(
        &self,
        order: &UploadOrder,
        file: &Path,
        reference: &str,
    ) -> Result<String, Error> {
        let name = "import an image";
        let mut about = order.metadata.clone();
        let tags = order.tags.to_metadata().into_iter();
        about.extend(tags.map(|(key, value)| (key.to_owned(), value)));
        let label = format!("LABEL {IMAGE_LABEL}={}", encode_query(&about));
        let uri = format!(
            "/images/create?fromSrc=-&repo={}&tag=latest&changes={}",
            encode(reference),
            encode(&label)
        );
        let (body, verdict) = image_file::body(order, file);
        let body = CallBody::Stream(body);
        let answer = self
            .call(name, Method::POST, uri, body, IMPORT_LIMIT)
            .await
            .and_then(|answer| accepted(name, answer));
        // A runtime that was cut off has its own words for it.
        let answer = answer.map_err(|error| verdict.take().unwrap_or(error))?;
        let last = progress(name, &answer)?;
        last.ok_or_else(|| {
            Error::retry("the container runtime imported an image and did not say which")
        })
    }

    /// Removes one of an image's names, and the image with the last of them. False if it is in use.
    pub(crate) async fn remove_image(&self, id_or_reference: &str) -> Result<bool, Error> {
        let uri = format!("/images/{}", encode(id_or_reference));
        let name = "remove an image";
        let answer = self
            .call(name, Method::DELETE, uri, CallBody::Empty, self.limit)
            .await?;
        if answer.status == 409 {
            return Ok(false);
        }
        found(name, answer).map(|_| true)
    }
}

fn archive_uri(id: &str, path: &str) -> String {
    format!("/containers/{}/archive?path={}", encode(id), encode(path))
}

/// Docker has a status for it, Podman only a sentence.
fn is_name_conflict(answer: &Answer) -> bool {
    let message = crate::failure::message(answer);
    answer.status == 409 || (answer.status >= 400 && message.contains("name is already in use"))
}

fn accepted(call: &str, answer: Answer) -> Result<Answer, Error> {
    if (200..300).contains(&answer.status) {
        Ok(answer)
    } else {
        Err(refused(call, &answer))
    }
}

/// None if there is no such thing.
fn found(call: &str, answer: Answer) -> Result<Option<Answer>, Error> {
    if answer.status == 404 {
        return Ok(None);
    }
    accepted(call, answer).map(Some)
}

fn read<T: DeserializeOwned>(call: &str, answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|cause| garbled(call, cause))
}

/// The id or status that the last line tells, unless one of them tells of an error.
fn progress(call: &str, answer: &Answer) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Line {
        error: Option<String>,
        id: Option<String>,
        status: Option<String>,
    }
    let mut last = None;
    for line in serde_json::Deserializer::from_slice(&answer.body).into_iter::<Line>() {
        let line = line.map_err(|cause| garbled(call, cause))?;
        if let Some(error) = line.error {
            return Err(told(call, 500, &error));
        }
        let words = [line.id, line.status].into_iter().flatten();
        last = words.into_iter().find(|word| !word.is_empty()).or(last);
    }
    Ok(last)
}

/// Output comes in frames: a byte for the stream, three of nothing, four for the length.
fn text_of_log(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&[_, 0, 0, 0, a, b, c, d], after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let (frame, after) = after.split_at(length.min(after.len()));
        text.extend_from_slice(frame);
        rest = after;
    }
    text.extend_from_slice(rest);
    String::from_utf8_lossy(&text).into_owned()
}

/// For a part of a path or a query; references of images keep their shape.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn encode_query(pairs: &BTreeMap<String, String>) -> String {
    let pairs = pairs
        .iter()
        .map(|(key, value)| format!("{}={}", encode(key), encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

fn decode_query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match number {
            Some(number) if byte == b'%' => {
                out.push(number);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> Image {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_an_upload_says_survives_the_runtime() {
        let about: BTreeMap<_, _> = [
            ("nodeyard_system_id", "a b"),
            ("odd & key=", "\"quotes\" $HOME 100% \\ ü\nline"),
            ("empty", ""),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let label = encode_query(&about);
        assert!(
            label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"%&=-_.~/:".contains(&byte)),
            "{label}"
        );
        let labels =
            serde_json::json!({"Id": "sha256:aa", "Labels": {"nodeyard": label, "os": "jammy"}});
        let properties = image(&labels.to_string()).to_cloud_image().properties;
        assert_eq!(properties.get("os").map(String::as_str), Some("jammy"));
        assert!(
            about
                .iter()
                .all(|(key, value)| properties.get(key) == Some(value))
        );
        assert_eq!(properties.len(), 4);
        assert_eq!(decode("%zz%4"), "%zz%4");
    }

    #[test]
    fn images_are_found_by_the_names_people_use() {
        let debian = image(
            r#"{"Id": "sha256:0123456789abcdef", "RepoTags": ["docker.io/library/debian:12"]}"#,
        );
        for name in ["debian:12", "docker.io/library/debian:12"] {
            assert!(debian.is_called(name), "{name}");
        }
        for name in ["debian", "debian:1", "ian:12", "other/debian:12", ""] {
            assert!(!debian.is_called(name), "{name}");
        }
        let local = image(
            r#"{"Id": "sha256:aa", "RepoTags": ["localhost/nodeyard/x:latest", "<none>:<none>"]}"#,
        );
        assert!(local.is_called("nodeyard/x") && local.is_called("localhost/nodeyard/x"));
        assert_eq!(local.references().count(), 1);
        assert!(debian.has_id("0123456789ab") && debian.has_id("sha256:0123456789abcdef"));
        assert!(!debian.has_id("0123") && !debian.has_id("1123456789abcdef"));
        assert_eq!(with_tag("host:5000/x"), "host:5000/x:latest");
    }

    #[test]
    fn states_of_both_runtimes_are_understood() {
        let container = |state: &str| -> Container {
            let text =
                format!(r#"{{"Id": "a", "State": "{state}", "Names": null, "Labels": null}}"#);
            serde_json::from_str(&text).unwrap()
        };
        for usable in ["created", "initialized", "running"] {
            assert!(container(usable).is_usable(), "{usable}");
        }
        for over in ["exited", "stopped", "dead", "removing", "", "of the future"] {
            assert!(!container(over).is_usable(), "{over}");
        }
    }

    #[test]
    fn ports_and_addresses_are_where_either_runtime_puts_them() {
        let inspected: Inspected = serde_json::from_str(
            r#"{"State": {"Status": "running"}, "NetworkSettings": {"IPAddress": "",
                "Networks": {"x": {"IPAddress": "10.0.0.2"}},
                "Ports": {"80/tcp": null, "22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "4711"}]}}}"#,
        )
        .unwrap();
        assert_eq!(inspected.published(22), Some(4711));
        assert_eq!(inspected.published(80), None);
        assert_eq!(inspected.address(), Some("10.0.0.2"));
        let bare: Inspected = serde_json::from_str(r#"{"State": {}}"#).unwrap();
        assert!(bare.published(22).is_none() && !bare.is_running() && !bare.is_new());
    }

    #[test]
    fn progress_tells_the_id_or_the_error() {
        let answer = |text: &str| Answer {
            status: 200,
            body: text.to_owned().into(),
        };
        let docker = answer("{\"status\":\"Importing\"}\r\n{\"status\":\"sha256:ab\"}\r\n");
        assert_eq!(
            progress("import", &docker).unwrap().as_deref(),
            Some("sha256:ab")
        );
        let failed =
            answer(r#"{"status":"Pulling"} {"error":"manifest unknown","errorDetail":{}}"#);
        let error = progress("pull", &failed).unwrap_err();
        assert!(error.to_string().contains("manifest unknown"), "{error}");
    }

    #[test]
    fn output_is_taken_out_of_its_frames() {
        let framed = b"\x01\0\0\0\0\0\0\x06hello\n\x02\0\0\0\0\0\0\x07wo";
        assert_eq!(text_of_log(framed), "hello\nwo");
        assert_eq!(text_of_log(b"plain\n"), "plain\n");
        assert_eq!(text_of_log(b""), "");
    }
}
