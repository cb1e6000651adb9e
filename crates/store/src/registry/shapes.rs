//! The [`Shape`]s of the registry's views.

use nodeyard_model::layout::{self, RecordPath};
use nodeyard_model::{
    BuildKey, ComponentKind, ImageBuild, ImageUpload, Node, NodeId, NodeRequest, PoolComponent,
    Record as _, RequestId, UploadKey,
};

use crate::path::TreePath;
use crate::view::{Kind, Shape};

type ParseError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone, Copy)]
pub struct RequestShape;

#[derive(Debug, Clone, Copy)]
pub struct NodeShape;

/// The pools of all launchers. The id is opaque; a pool's host name is in its record.
#[derive(Debug, Clone, Copy)]
pub struct PoolShape;

/// The builds and uploads of all images.
#[derive(Debug, Clone, Copy)]
pub struct ImageShape;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageId {
    Build(BuildKey),
    Upload(UploadKey),
}

#[derive(Debug, Clone, PartialEq)]
pub enum ImageRecord {
    Build(ImageBuild),
    Upload(ImageUpload),
}

fn record<I>(id: I) -> Kind<I> {
    Kind::Record {
        id,
        branch: false,
        lock: false,
    }
}

impl Shape for RequestShape {
    type Id = RequestId;
    type Value = NodeRequest;

    fn kind(&self, path: &TreePath) -> Kind<RequestId> {
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Request(id)) => record(id),
            _ => Kind::Nothing,
        }
    }

    fn parse(&self, _: &RequestId, data: &[u8]) -> Result<NodeRequest, ParseError> {
        Ok(NodeRequest::from_json(data)?)
    }
}

impl Shape for NodeShape {
    type Id = NodeId;
    type Value = Node;

    fn kind(&self, path: &TreePath) -> Kind<NodeId> {
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Node(id)) => Kind::Record {
                id,
                branch: false,
                lock: true,
            },
            Some(RecordPath::LockEntry(lock, _)) => match *lock {
                RecordPath::NodeLock(id) => Kind::Contender(id),
                _ => Kind::Nothing,
            },
            _ => Kind::Nothing,
        }
    }

    fn parse(&self, _: &NodeId, data: &[u8]) -> Result<Node, ParseError> {
        Ok(Node::from_json(data)?)
    }
}

impl Shape for PoolShape {
    type Id = String;
    type Value = PoolComponent;

    fn kind(&self, path: &TreePath) -> Kind<String> {
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Component(ComponentKind::Pool, name)) => record(name),
            _ => Kind::Nothing,
        }
    }

    fn parse(&self, _: &String, data: &[u8]) -> Result<PoolComponent, ParseError> {
        Ok(PoolComponent::from_json(data)?)
    }
}

impl Shape for ImageShape {
    type Id = ImageId;
    type Value = ImageRecord;

    fn kind(&self, path: &TreePath) -> Kind<ImageId> {
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Image(_) | RecordPath::Builds(_) | RecordPath::Uploads(..)) => {
                Kind::Directory
            }
            Some(RecordPath::Build(key)) => Kind::Record {
                id: ImageId::Build(key),
                branch: true,
                lock: false,
            },
            Some(RecordPath::Upload(key)) => record(ImageId::Upload(key)),
            Some(_) => Kind::Nothing,
            None if is_upload_directory(path) => Kind::Directory,
            None => Kind::Nothing,
        }
    }

    fn parse(&self, id: &ImageId, data: &[u8]) -> Result<ImageRecord, ParseError> {
        Ok(match id {
            ImageId::Build(_) => ImageRecord::Build(ImageBuild::from_json(data)?),
            ImageId::Upload(_) => ImageRecord::Upload(ImageUpload::from_json(data)?),
        })
    }
}

/// Returns whether the path is `<build>/providers` or `<build>/providers/<provider>`, which are not records.
fn is_upload_directory(path: &TreePath) -> bool {
    let below = path.as_str().strip_prefix(layout::IMAGES);
    let parts: Vec<&str> = below
        .into_iter()
        .flat_map(|below| below.split('/'))
        .collect();
    matches!(
        parts[..],
        ["", _, "builds", _, "providers"] | ["", _, "builds", _, "providers", _]
    )
}
