//! The responses of the runtime.

use std::collections::BTreeMap;

use nodeyard_driver::{CloudImage, ImageStatus, Tags};
use nodeyard_model::Timestamp;
use serde::Deserialize;

use super::text::decode_query;

/// The label that holds all metadata of an uploaded image, encoded: Docker parses the labels of an import like a
/// Dockerfile, with variables and quotes, and Podman parses them differently.
pub(super) const IMAGE_LABEL: &str = "nodeyard";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerSummary {
    pub(crate) id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    state: String,
    #[serde(default, rename = "ImageID")]
    image: String,
}

impl ContainerSummary {
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

    /// Returns whether the container runs or was never started. Any other one has exited or is about to.
    pub(crate) fn is_usable(&self) -> bool {
        is_new(&self.state) || is_running(&self.state)
    }

    pub(crate) fn uses(&self, image: &str) -> bool {
        bare(&self.image) == bare(image)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerDetails {
    pub(crate) state: ContainerState,
    #[serde(default)]
    network_settings: ContainerNetworkSettings,
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
struct ContainerNetworkSettings {
    #[serde(rename = "IPAddress")]
    address: Option<String>,
    ports: Option<BTreeMap<String, Option<Vec<PortBinding>>>>,
    networks: Option<BTreeMap<String, ContainerNetwork>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerNetwork {
    #[serde(rename = "IPAddress")]
    address: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PortBinding {
    host_port: String,
}

impl ContainerDetails {
    pub(crate) fn is_new(&self) -> bool {
        is_new(&self.state.status)
    }

    pub(crate) fn is_running(&self) -> bool {
        is_running(&self.state.status)
    }

    /// Describes the state for people.
    pub(crate) fn describe(&self) -> String {
        let state = &self.state;
        let mut text = format!("the container is {}", state.status);
        if !self.is_new() && !self.is_running() {
            text = format!("the container exited with exit code {}", state.exit_code);
        }
        if state.out_of_memory {
            text.push_str(", killed because it used up its memory");
        }
        if !state.error.is_empty() {
            text = format!("{text}: {}", state.error);
        }
        text
    }

    /// Returns the port of the host that is forwarded to `port` of the container.
    pub(crate) fn published_port(&self, port: u16) -> Option<u16> {
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

/// In Podman, a container is `initialized` for the moment before it runs.
fn is_new(state: &str) -> bool {
    matches!(state, "created" | "configured" | "initialized")
}

fn is_running(state: &str) -> bool {
    state == "running"
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ImageSummary {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) repo_tags: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    created: i64,
}

impl ImageSummary {
    /// Returns the names of the image. `<none>:<none>` is not one.
    pub(crate) fn references(&self) -> impl Iterator<Item = &str> {
        let tags = self.repo_tags.iter().flatten().map(String::as_str);
        tags.filter(|tag| !tag.contains("<none>"))
    }

    /// Returns whether this is one of the names of the image. A short name refers to Docker's registry or to this host.
    pub(crate) fn has_reference(&self, reference: &str) -> bool {
        let reference = with_tag(reference);
        self.references().any(|tag| {
            tag == reference
                || ["docker.io/library/", "docker.io/", "localhost/"]
                    .iter()
                    .any(|place| tag.strip_prefix(place) == Some(&reference))
        })
    }

    /// Returns whether this is the id of the image, or a prefix of it that people would copy.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        let id = bare(id);
        id.len() >= 12 && bare(&self.id).starts_with(id)
    }

    pub(crate) fn tags(&self) -> Tags {
        self.to_cloud_image().tags()
    }

    pub(crate) fn to_cloud_image(&self) -> CloudImage {
        let mut properties = self.labels.clone().unwrap_or_default();
        if let Some(encoded) = properties.remove(IMAGE_LABEL) {
            properties.extend(decode_query(&encoded));
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

/// The default command of an image.
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

/// Removes the prefix that Podman writes before some ids.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

pub(super) fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains(':') || last.contains('@') {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::encode_query;
    use super::*;

    fn image(text: &str) -> ImageSummary {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn metadata_of_an_upload_survives_the_runtime() {
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
    }

    #[test]
    fn images_are_found_by_the_names_people_use() {
        let debian = image(
            r#"{"Id": "sha256:0123456789abcdef", "RepoTags": ["docker.io/library/debian:12"]}"#,
        );
        for name in ["debian:12", "docker.io/library/debian:12"] {
            assert!(debian.has_reference(name), "{name}");
        }
        for name in ["debian", "debian:1", "ian:12", "other/debian:12", ""] {
            assert!(!debian.has_reference(name), "{name}");
        }
        let local = image(
            r#"{"Id": "sha256:aa", "RepoTags": ["localhost/nodeyard/x:latest", "<none>:<none>"]}"#,
        );
        assert!(local.has_reference("nodeyard/x") && local.has_reference("localhost/nodeyard/x"));
        assert_eq!(local.references().count(), 1);
        assert!(debian.has_id("0123456789ab") && debian.has_id("sha256:0123456789abcdef"));
        assert!(!debian.has_id("0123") && !debian.has_id("1123456789abcdef"));
        assert_eq!(with_tag("host:5000/x"), "host:5000/x:latest");
    }

    #[test]
    fn states_of_both_runtimes_are_known() {
        let container = |state: &str| -> ContainerSummary {
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
    fn ports_and_addresses_of_both_runtimes_are_found() {
        let details: ContainerDetails = serde_json::from_str(
            r#"{"State": {"Status": "running"}, "NetworkSettings": {"IPAddress": "",
                "Networks": {"x": {"IPAddress": "10.0.0.2"}},
                "Ports": {"80/tcp": null, "22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "4711"}]}}}"#,
        )
        .unwrap();
        assert_eq!(details.published_port(22), Some(4711));
        assert_eq!(details.published_port(80), None);
        assert_eq!(details.address(), Some("10.0.0.2"));
        let bare: ContainerDetails = serde_json::from_str(r#"{"State": {}}"#).unwrap();
        assert!(bare.published_port(22).is_none() && !bare.is_running() && !bare.is_new());
    }
}
