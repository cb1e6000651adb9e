//! The one thing of clouds.yaml that the configuration depends on: the format in which a cloud takes images.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::yaml::{self, Map, Node, Value};

/// Formats by the name of the cloud. A file that cannot be read says nothing here: whoever logs in to the cloud will.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Clouds {
    image_formats: HashMap<String, String>,
}

impl Clouds {
    /// From the place that openstacksdk would find.
    pub(crate) fn find() -> Self {
        let found = places()
            .into_iter()
            .find_map(|path| std::fs::read(path).ok());
        found.map_or_else(Self::default, |bytes| Self::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let root = yaml::parse(&text, 0, &mut Vec::new());
        let root = root.ok().flatten();
        let clouds = root.as_deref().and_then(|root| child(root, "clouds"));
        let clouds = clouds.and_then(map).map(|clouds| clouds.entries.as_slice());
        let format = |cloud: &Node| match &child(cloud, "image_format")?.value {
            Value::Scalar(scalar) => Some(scalar.text.clone()),
            _ => None,
        };
        let image_formats = clouds
            .unwrap_or_default()
            .iter()
            .filter_map(|cloud| Some((cloud.key.clone(), format(&cloud.value)?)))
            .collect();
        Self { image_formats }
    }

    pub(crate) fn image_format(&self, cloud: &str) -> Option<&str> {
        self.image_formats.get(cloud).map(String::as_str)
    }
}

fn places() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("OS_CLIENT_CONFIG_FILE") {
        return vec![path.into()];
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/openstack"));
    let system = Some(PathBuf::from("/etc/openstack"));
    let directories = [Some(PathBuf::from(".")), home, system];
    let directories = directories.into_iter().flatten();
    directories
        .flat_map(|directory| ["clouds.yaml", "clouds.yml"].map(|name| directory.join(name)))
        .collect()
}

fn map(node: &Node) -> Option<&Map> {
    match &node.value {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

fn child<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let entries = map(node)?.entries.iter();
    let entry = entries.rev().find(|entry| entry.key == key)?;
    Some(&entry.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_said_is_known() {
        let text = b"clouds:\n  a:\n    image_format: vhd\n  b:\n    auth: {}\n  c: 1\n";
        let clouds = Clouds::parse(text);
        assert_eq!(clouds.image_format("a"), Some("vhd"));
        assert_eq!(clouds.image_format("b"), None);
        for bad in [&b"clouds: ["[..], b"\xff\xfe", b"- x", b""] {
            assert_eq!(Clouds::parse(bad), Clouds::default());
        }
    }
}
