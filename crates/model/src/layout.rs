//! Paths in the store: building and parsing.
//!
//! The layout below `/nodepool` is defined by Nodepool and Zuul; our own records are below `/nodeyard`. A component's
//! path cannot be split into host name and sequence number; the record has the host name.

use crate::ids::{BuildId, NodeId, RequestId};
use crate::image::{BuildKey, UploadKey};
use crate::names::{ImageName, ProviderName};
use crate::state::ComponentKind;

pub const NODEPOOL: &str = "/nodepool";
pub const REQUESTS: &str = "/nodepool/requests";
/// Locks are not children of requests, because Zuul deletes requests only without children.
pub const REQUEST_LOCKS: &str = "/nodepool/requests-lock";
pub const NODES: &str = "/nodepool/nodes";
pub const IMAGES: &str = "/nodepool/images";
pub const COMPONENTS: &str = "/nodepool/components";
/// The winner of this election reports the statistics of all launchers.
pub const STATS_ELECTION: &str = "/nodepool/elections/stats";

pub const NODEYARD: &str = "/nodeyard";
/// The id that tags all cloud resources of this installation.
pub const SYSTEM_ID: &str = "/nodeyard/system-id";
/// The stewards' own records of images.
pub const IMAGE_STATUS: &str = "/nodeyard/images";
/// Drained components, which accept no new work.
pub const DRAINS: &str = "/nodeyard/drains";
/// Explanations of finished requests.
pub const EXPLANATIONS: &str = "/nodeyard/explanations";
/// The lock for creating min-ready requests.
pub const MIN_READY_LOCK: &str = "/nodeyard/min-ready";
pub const LEASES: &str = "/nodeyard/leases";
/// Scopes, which own leases.
pub const SCOPES: &str = "/nodeyard/scopes";
/// The election of the active lease keeper.
pub const LEASES_ELECTION: &str = "/nodeyard/elections/leases";

/// The name of the lock directory of a node, a build, or a directory of builds or uploads. Listings of builds and
/// uploads include it.
pub const LOCK: &str = "lock";

pub fn request(id: RequestId) -> String {
    format!("{REQUESTS}/{id}")
}

/// The path prefix of new requests, to which the store appends a sequence number. Precedences have three digits.
pub fn request_prefix(precedence: u16) -> String {
    format!("{REQUESTS}/{precedence:03}-")
}

pub fn request_lock(id: RequestId) -> String {
    format!("{REQUEST_LOCKS}/{id}")
}

/// The explanation of a finished request.
pub fn explanation(id: RequestId) -> String {
    format!("{EXPLANATIONS}/{id}")
}

pub fn node(id: NodeId) -> String {
    format!("{NODES}/{id}")
}

pub fn node_lock(id: NodeId) -> String {
    format!("{NODES}/{id}/{LOCK}")
}

pub fn image(image: &ImageName) -> String {
    format!("{IMAGES}/{image}")
}

/// Exists while the image is paused.
pub fn image_pause(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/pause")
}

/// Exists while a requested build is pending.
pub fn build_request(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/request-build")
}

/// The stewards' status of an image.
pub fn image_status(image: &ImageName) -> String {
    format!("{IMAGE_STATUS}/{image}")
}

/// The canary, reverted and pinned builds of an image.
pub fn image_canary(image: &ImageName) -> String {
    format!("{IMAGE_STATUS}/{image}/canary")
}

/// The Zuul builds that are available for an image.
pub fn image_zuul_builds(image: &ImageName) -> String {
    format!("{IMAGE_STATUS}/{image}/zuul")
}

/// The progress of an image's jobs, while there are any.
pub fn image_jobs(image: &ImageName) -> String {
    format!("{IMAGE_STATUS}/{image}/jobs")
}

/// Reports of running stewards on an image, for launchers.
pub fn image_stewards(image: &ImageName) -> String {
    format!("{IMAGE_STATUS}/{image}/stewards")
}

pub fn builds(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/builds")
}

/// The lock for building an image.
pub fn builds_lock(image: &ImageName) -> String {
    format!("{}/{LOCK}", builds(image))
}

pub fn build(key: &BuildKey) -> String {
    format!("{}/{}", builds(&key.image), key.build)
}

pub fn build_lock(key: &BuildKey) -> String {
    format!("{}/{LOCK}", build(key))
}

pub fn build_providers(key: &BuildKey) -> String {
    format!("{}/providers", build(key))
}

pub fn uploads(key: &BuildKey, provider: &ProviderName) -> String {
    format!("{}/{provider}/images", build_providers(key))
}

/// The lock for uploading a build to a provider.
pub fn uploads_lock(key: &BuildKey, provider: &ProviderName) -> String {
    format!("{}/{LOCK}", uploads(key, provider))
}

pub fn upload(key: &UploadKey) -> String {
    format!("{}/{}", uploads(&key.build, &key.provider), key.upload)
}

pub fn upload_lock(key: &UploadKey) -> String {
    format!("{}/{LOCK}", upload(key))
}

pub fn components(kind: ComponentKind) -> String {
    format!("{COMPONENTS}/{kind}")
}

/// The path prefix of new components, to which the store appends a sequence number.
pub fn component_prefix(kind: ComponentKind, hostname: &str) -> String {
    format!("{COMPONENTS}/{kind}/{hostname}")
}

/// A parsed path below `/nodepool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordPath {
    Request(RequestId),
    RequestLock(RequestId),
    Node(NodeId),
    NodeLock(NodeId),
    Image(ImageName),
    ImagePause(ImageName),
    BuildRequest(ImageName),
    Builds(ImageName),
    BuildsLock(ImageName),
    Build(BuildKey),
    BuildLock(BuildKey),
    Uploads(BuildKey, ProviderName),
    UploadsLock(BuildKey, ProviderName),
    Upload(UploadKey),
    UploadLock(UploadKey),
    /// The name only serves to distinguish components.
    Component(ComponentKind, String),
    /// An entry of a lock, with the lock's path and the entry's name.
    LockEntry(Box<RecordPath>, String),
}

impl RecordPath {
    /// Parses a path. Returns `None` for unknown paths and intermediate directories.
    pub fn parse(path: &str) -> Option<Self> {
        let below = path.strip_prefix(NODEPOOL)?.strip_prefix('/')?;
        let parts: Vec<&str> = below.split('/').collect();
        Self::of(&parts).or_else(|| {
            let (name, lock) = parts.split_last()?;
            let lock = Self::of(lock).filter(Self::is_lock)?;
            let valid = !name.is_empty();
            valid.then(|| Self::LockEntry(Box::new(lock), (*name).to_owned()))
        })
    }

    fn of(parts: &[&str]) -> Option<Self> {
        match *parts {
            ["requests", id] => Some(Self::Request(id.parse().ok()?)),
            ["requests-lock", id] => Some(Self::RequestLock(id.parse().ok()?)),
            ["nodes", id] => Some(Self::Node(id.parse().ok()?)),
            ["nodes", id, LOCK] => Some(Self::NodeLock(id.parse().ok()?)),
            ["components", kind, name] if !name.is_empty() => {
                Some(Self::Component(kind.parse().ok()?, name.to_owned()))
            }
            ["images", image, ref rest @ ..] => Self::of_image(image.parse().ok()?, rest),
            _ => None,
        }
    }

    fn of_image(image: ImageName, parts: &[&str]) -> Option<Self> {
        match *parts {
            [] => Some(Self::Image(image)),
            ["pause"] => Some(Self::ImagePause(image)),
            ["request-build"] => Some(Self::BuildRequest(image)),
            ["builds"] => Some(Self::Builds(image)),
            ["builds", LOCK] => Some(Self::BuildsLock(image)),
            ["builds", build, ref rest @ ..] => {
                let build: BuildId = build.parse().ok()?;
                Self::of_build(BuildKey { image, build }, rest)
            }
            _ => None,
        }
    }

    fn of_build(build: BuildKey, parts: &[&str]) -> Option<Self> {
        match *parts {
            [] => Some(Self::Build(build)),
            [LOCK] => Some(Self::BuildLock(build)),
            ["providers", provider, "images", ref rest @ ..] => {
                Self::of_upload(build, provider.parse().ok()?, rest)
            }
            _ => None,
        }
    }

    fn of_upload(build: BuildKey, provider: ProviderName, parts: &[&str]) -> Option<Self> {
        let key = |upload: &str| {
            Some(UploadKey {
                build: build.clone(),
                provider: provider.clone(),
                upload: upload.parse().ok()?,
            })
        };
        match *parts {
            [] => Some(Self::Uploads(build, provider)),
            [LOCK] => Some(Self::UploadsLock(build, provider)),
            [upload] => key(upload).map(Self::Upload),
            [upload, LOCK] => key(upload).map(Self::UploadLock),
            _ => None,
        }
    }

    fn is_lock(&self) -> bool {
        matches!(
            self,
            Self::RequestLock(_)
                | Self::NodeLock(_)
                | Self::BuildsLock(_)
                | Self::BuildLock(_)
                | Self::UploadsLock(..)
                | Self::UploadLock(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload_key() -> UploadKey {
        UploadKey {
            build: BuildKey {
                image: ImageName::new("ubuntu").unwrap(),
                build: "0123456789abcdef0123456789abcdef".parse().unwrap(),
            },
            provider: ProviderName::new("cloud one").unwrap(),
            upload: "0000000003".parse().unwrap(),
        }
    }

    #[test]
    fn paths_round_trip() {
        let request_id: RequestId = "200-0000000042".parse().unwrap();
        let node_id: NodeId = "0000000007".parse().unwrap();
        let key = upload_key();
        let (image_name, provider) = (key.build.image.clone(), key.provider.clone());
        const BUILD: &str = "/nodepool/images/ubuntu/builds/0123456789abcdef0123456789abcdef";
        for (made, expected, place) in [
            (
                request(request_id),
                "/nodepool/requests/200-0000000042".to_owned(),
                RecordPath::Request(request_id),
            ),
            (
                request_lock(request_id),
                "/nodepool/requests-lock/200-0000000042".to_owned(),
                RecordPath::RequestLock(request_id),
            ),
            (
                node(node_id),
                "/nodepool/nodes/0000000007".to_owned(),
                RecordPath::Node(node_id),
            ),
            (
                node_lock(node_id),
                "/nodepool/nodes/0000000007/lock".to_owned(),
                RecordPath::NodeLock(node_id),
            ),
            (
                image(&image_name),
                "/nodepool/images/ubuntu".to_owned(),
                RecordPath::Image(image_name.clone()),
            ),
            (
                image_pause(&image_name),
                "/nodepool/images/ubuntu/pause".to_owned(),
                RecordPath::ImagePause(image_name.clone()),
            ),
            (
                build_request(&image_name),
                "/nodepool/images/ubuntu/request-build".to_owned(),
                RecordPath::BuildRequest(image_name.clone()),
            ),
            (
                builds(&image_name),
                "/nodepool/images/ubuntu/builds".to_owned(),
                RecordPath::Builds(image_name.clone()),
            ),
            (
                builds_lock(&image_name),
                "/nodepool/images/ubuntu/builds/lock".to_owned(),
                RecordPath::BuildsLock(image_name.clone()),
            ),
            (
                build(&key.build),
                BUILD.to_owned(),
                RecordPath::Build(key.build.clone()),
            ),
            (
                build_lock(&key.build),
                format!("{BUILD}/lock"),
                RecordPath::BuildLock(key.build.clone()),
            ),
            (
                uploads(&key.build, &provider),
                format!("{BUILD}/providers/cloud one/images"),
                RecordPath::Uploads(key.build.clone(), provider.clone()),
            ),
            (
                uploads_lock(&key.build, &provider),
                format!("{BUILD}/providers/cloud one/images/lock"),
                RecordPath::UploadsLock(key.build.clone(), provider.clone()),
            ),
            (
                upload(&key),
                format!("{BUILD}/providers/cloud one/images/0000000003"),
                RecordPath::Upload(key.clone()),
            ),
            (
                upload_lock(&key),
                format!("{BUILD}/providers/cloud one/images/0000000003/lock"),
                RecordPath::UploadLock(key.clone()),
            ),
        ] {
            assert_eq!(made, expected);
            assert_eq!(RecordPath::parse(&made), Some(place.clone()));
            if place.is_lock() {
                let lock_entry = "0f__lock__0000000001";
                assert_eq!(
                    RecordPath::parse(&format!("{made}/{lock_entry}")),
                    Some(RecordPath::LockEntry(
                        Box::new(place),
                        lock_entry.to_owned()
                    ))
                );
            }
        }
        let prefix = component_prefix(ComponentKind::Pool, "np01");
        assert_eq!(
            RecordPath::parse(&format!("{prefix}0000000007")),
            Some(RecordPath::Component(
                ComponentKind::Pool,
                "np010000000007".to_owned()
            ))
        );
        assert_eq!(request_prefix(99), "/nodepool/requests/099-");
    }

    #[test]
    fn other_paths_are_rejected() {
        for path in [
            "",
            "/",
            "/nodepool",
            "/nodepool/",
            "/nodepool/nodes",
            "/nodepool/nodes/",
            "/nodepool/nodes/7",
            "/nodepool/nodes/0000000007/",
            "/nodepool/nodes/0000000007/lock/",
            "/nodepool/nodes/0000000007/lock/a/b",
            "/nodepool/nodes/0000000007/other",
            "/nodepool/requests/0000000007",
            "/nodepool/requests/200-0000000042/x",
            "/nodepool/components/pool",
            "/nodepool/components/scheduler/a0000000001",
            "/nodepool/images/",
            "/nodepool/images/../nodes",
            "/nodepool/images/ubuntu/builds/lockx",
            "/nodepoolx/nodes/0000000007",
            "/zuul/hold-requests/0000000001",
        ] {
            assert_eq!(RecordPath::parse(path), None, "{path}");
        }
    }
}
