//! The metadata that leads from a resource in a cloud back to its record.
//!
//! The keys are those of Nodepool, so that its tools recognize our resources. The system id is our own: it distinguishes
//! two installations that use one cloud with the same provider name.

use std::collections::BTreeMap;

use nodeyard_model::{BuildId, NodeId, PoolName, ProviderName, UploadId};
use serde::{Deserialize, Serialize};

use crate::ids::SystemId;

const SYSTEM: &str = "nodeyard_system_id";
const PROVIDER: &str = "nodepool_provider_name";
const POOL: &str = "nodepool_pool_name";
const NODE: &str = "nodepool_node_id";
const BUILD: &str = "nodepool_build_id";
const UPLOAD: &str = "nodepool_upload_id";
const PUBLISHED_IMAGE: &str = "nodeyard_published_image";
const PUBLICATION: &str = "nodeyard_publication";

/// The tags of a resource. Invalid values count as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    pub system: Option<SystemId>,
    pub provider: Option<ProviderName>,
    pub pool: Option<PoolName>,
    pub node: Option<NodeId>,
    pub build: Option<BuildId>,
    pub upload: Option<UploadId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<Publication>,
}

/// An image that a job uploaded by itself. It has no record, and is identified by the job's build.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Publication {
    /// The name under which it is one version of several.
    pub image: Box<str>,
    pub id: Box<str>,
}

impl Tags {
    /// Returns the tags as metadata of a cloud.
    pub fn to_metadata(&self) -> BTreeMap<&'static str, String> {
        fn text(value: Option<&impl ToString>) -> Option<String> {
            value.map(ToString::to_string)
        }
        let published = self.publication.as_ref();
        [
            (SYSTEM, text(self.system.as_ref())),
            (PROVIDER, text(self.provider.as_ref())),
            (POOL, text(self.pool.as_ref())),
            (NODE, text(self.node.as_ref())),
            (BUILD, text(self.build.as_ref())),
            (UPLOAD, text(self.upload.as_ref())),
            (PUBLISHED_IMAGE, text(published.map(|it| &it.image))),
            (PUBLICATION, text(published.map(|it| &it.id))),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
    }

    pub fn from_metadata<'a>(metadata: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut tags = Self::default();
        let (mut image, mut publication) = (None, None);
        for (key, value) in metadata {
            match key {
                SYSTEM => tags.system = Some(SystemId::new(value)),
                PROVIDER => tags.provider = value.parse().ok(),
                POOL => tags.pool = Some(PoolName::new(value)),
                NODE => tags.node = value.parse().ok(),
                BUILD => tags.build = value.parse().ok(),
                UPLOAD => tags.upload = value.parse().ok(),
                PUBLISHED_IMAGE => image = Some(value.into()),
                PUBLICATION => publication = Some(value.into()),
                _ => {}
            }
        }
        if let (Some(image), Some(id)) = (image, publication) {
            tags.publication = Some(Publication { image, id });
        }
        tags
    }
}

/// The owner of resources: one provider of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub system: SystemId,
    pub provider: ProviderName,
}

impl Owner {
    /// Returns whether both names match. Resources of Python or of people are deleted through their record only.
    pub fn owns(&self, tags: &Tags) -> bool {
        tags.system.as_ref() == Some(&self.system) && tags.provider.as_ref() == Some(&self.provider)
    }

    pub fn owns_node(&self, tags: &Tags, node: NodeId) -> bool {
        self.owns(tags) && tags.node == Some(node)
    }

    pub fn owns_upload(&self, tags: &Tags, build: BuildId, upload: UploadId) -> bool {
        self.owns(tags) && tags.build == Some(build) && tags.upload == Some(upload)
    }

    pub fn node_tags(&self, node: NodeId, pool: PoolName) -> Tags {
        Tags {
            system: Some(self.system.clone()),
            provider: Some(self.provider.clone()),
            pool: Some(pool),
            node: Some(node),
            ..Tags::default()
        }
    }

    pub fn upload_tags(&self, build: BuildId, upload: UploadId) -> Tags {
        Tags {
            system: Some(self.system.clone()),
            provider: Some(self.provider.clone()),
            build: Some(build),
            upload: Some(upload),
            ..Tags::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner {
            system: SystemId::new("s1"),
            provider: ProviderName::new("cloud").unwrap(),
        }
    }

    #[test]
    fn tags_survive_the_cloud() {
        let node = owner().node_tags("0000000042".parse().unwrap(), "main".into());
        let upload = owner().upload_tags(BuildId::from_u128(7), "0000000001".parse().unwrap());
        let published = Tags {
            system: Some(SystemId::new("jobs")),
            publication: Some(Publication {
                image: "jammy".into(),
                id: "b1".into(),
            }),
            ..Tags::default()
        };
        for tags in [node, upload, published, Tags::default()] {
            let metadata = tags.to_metadata();
            let read =
                Tags::from_metadata(metadata.iter().map(|(key, value)| (*key, value.as_str())));
            assert_eq!(read, tags);
        }
    }

    #[test]
    fn both_names_must_match() {
        let id: NodeId = "0000000042".parse().unwrap();
        let read = |pairs: &[(&str, &str)]| Tags::from_metadata(pairs.iter().copied());
        let python = read(&[
            ("nodepool_provider_name", "cloud"),
            ("nodepool_node_id", "0000000042"),
        ]);
        assert!(!owner().owns_node(&python, id));
        let other_system = Tags {
            system: Some(SystemId::new("s2")),
            ..python.clone()
        };
        assert!(!owner().owns_node(&other_system, id));
        let ours = Tags {
            system: Some(SystemId::new("s1")),
            ..python
        };
        assert!(owner().owns_node(&ours, id));
        assert!(!owner().owns_node(&ours, "0000000043".parse().unwrap()));
    }

    #[test]
    fn invalid_ids_are_ignored() {
        assert_eq!(Tags::from_metadata([("nodepool_node_id", "42")]).node, None);
    }
}
