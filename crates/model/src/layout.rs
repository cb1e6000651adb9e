//! Where things are in the store: every path, and back from a path to what it is.
//!
//! Below `/nodepool` the layout is Nodepool's, and Zuul has it built in. What is ours alone is below
//! `/nodeyard`. A component's name is its host name and a sequence number without anything between them:
//! read the host name from the record, not from the path.

use crate::ids::{BuildId, NodeId, RequestId};
use crate::image::{BuildKey, UploadKey};
use crate::names::{ImageName, ProviderName};
use crate::state::ComponentKind;

pub const NODEPOOL: &str = "/nodepool";
pub const REQUESTS: &str = "/nodepool/requests";
/// Apart from the requests: Zuul deletes a request only while nothing is below it.
pub const REQUEST_LOCKS: &str = "/nodepool/requests-lock";
pub const NODES: &str = "/nodepool/nodes";
pub const IMAGES: &str = "/nodepool/images";
pub const COMPONENTS: &str = "/nodepool/components";
/// The launcher that wins this election reports the statistics of all.
pub const STATS_ELECTION: &str = "/nodepool/elections/stats";

pub const NODEYARD: &str = "/nodeyard";
/// The id that marks everything this installation makes in a cloud.
pub const SYSTEM_ID: &str = "/nodeyard/system-id";
/// What stewards remember of images beside Nodepool's records.
pub const IMAGE_NOTES: &str = "/nodeyard/images";
/// What is to accept nothing new.
pub const DRAINS: &str = "/nodeyard/drains";
/// Why requests ended as they did.
pub const EXPLANATIONS: &str = "/nodeyard/explanations";
/// Held by whoever asks for nodes that are to be ready before anybody wants them.
pub const MIN_READY_LOCK: &str = "/nodeyard/min-ready";
pub const LEASES: &str = "/nodeyard/leases";
/// Scopes own leases.
pub const SCOPES: &str = "/nodeyard/scopes";
/// Of all that keep leases, the one that wins this election works.
pub const LEASES_ELECTION: &str = "/nodeyard/elections/leases";

/// The child of a node, build or directory of builds or uploads that holds its lock.
/// Lists of builds and uploads contain it, too.
pub const LOCK: &str = "lock";

pub fn request(id: RequestId) -> String {
    format!("{REQUESTS}/{id}")
}

/// What the sequence number of a new request is appended to. Precedences have three digits.
pub fn request_prefix(precedence: u16) -> String {
    format!("{REQUESTS}/{precedence:03}-")
}

pub fn request_lock(id: RequestId) -> String {
    format!("{REQUEST_LOCKS}/{id}")
}

/// What became of a request, and why.
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

/// Exists while somebody waits for a build that was asked for.
pub fn build_request(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/request-build")
}

/// What stewards remember of the image.
pub fn image_notes(image: &ImageName) -> String {
    format!("{IMAGE_NOTES}/{image}")
}

/// Which builds of an image are on trial, taken back or pinned.
pub fn image_canary(image: &ImageName) -> String {
    format!("{IMAGE_NOTES}/{image}/canary")
}

/// What Zuul offers of an image that its jobs make.
pub fn image_market(image: &ImageName) -> String {
    format!("{IMAGE_NOTES}/{image}/zuul")
}

/// How far the jobs of the image are, while there are any.
pub fn image_jobs(image: &ImageName) -> String {
    format!("{IMAGE_NOTES}/{image}/jobs")
}

/// What each steward reports of the image to launchers, while it runs.
pub fn image_stewards(image: &ImageName) -> String {
    format!("{IMAGE_NOTES}/{image}/stewards")
}

pub fn builds(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/builds")
}

/// Held by whoever builds the image.
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

/// Held by whoever uploads the build to the provider.
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

/// What the sequence number of a new component is appended to.
pub fn component_prefix(kind: ComponentKind, hostname: &str) -> String {
    format!("{COMPONENTS}/{kind}/{hostname}")
}

/// What a path stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
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
    /// The name is only good for telling components apart.
    Component(ComponentKind, String),
    /// An entry in a lock: its name, below the lock's own place.
    Contender(Box<Place>, String),
}

impl Place {
    /// None for a path that is nothing of ours, or only a directory on the way.
    pub fn parse(path: &str) -> Option<Self> {
        let below = path.strip_prefix(NODEPOOL)?.strip_prefix('/')?;
        let parts: Vec<&str> = below.split('/').collect();
        Self::of(&parts).or_else(|| {
            let (name, lock) = parts.split_last()?;
            let lock = Self::of(lock).filter(Self::is_lock)?;
            let valid = !name.is_empty();
            valid.then(|| Self::Contender(Box::new(lock), (*name).to_owned()))
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
    fn paths_are_nodepools_and_read_back() {
        let request_id: RequestId = "200-0000000042".parse().unwrap();
        let node_id: NodeId = "0000000007".parse().unwrap();
        let key = upload_key();
        let (image_name, provider) = (key.build.image.clone(), key.provider.clone());
        const BUILD: &str = "/nodepool/images/ubuntu/builds/0123456789abcdef0123456789abcdef";
        for (made, expected, place) in [
            (
                request(request_id),
                "/nodepool/requests/200-0000000042".to_owned(),
                Place::Request(request_id),
            ),
            (
                request_lock(request_id),
                "/nodepool/requests-lock/200-0000000042".to_owned(),
                Place::RequestLock(request_id),
            ),
            (
                node(node_id),
                "/nodepool/nodes/0000000007".to_owned(),
                Place::Node(node_id),
            ),
            (
                node_lock(node_id),
                "/nodepool/nodes/0000000007/lock".to_owned(),
                Place::NodeLock(node_id),
            ),
            (
                image(&image_name),
                "/nodepool/images/ubuntu".to_owned(),
                Place::Image(image_name.clone()),
            ),
            (
                image_pause(&image_name),
                "/nodepool/images/ubuntu/pause".to_owned(),
                Place::ImagePause(image_name.clone()),
            ),
            (
                build_request(&image_name),
                "/nodepool/images/ubuntu/request-build".to_owned(),
                Place::BuildRequest(image_name.clone()),
            ),
            (
                builds(&image_name),
                "/nodepool/images/ubuntu/builds".to_owned(),
                Place::Builds(image_name.clone()),
            ),
            (
                builds_lock(&image_name),
                "/nodepool/images/ubuntu/builds/lock".to_owned(),
                Place::BuildsLock(image_name.clone()),
            ),
            (
                build(&key.build),
                BUILD.to_owned(),
                Place::Build(key.build.clone()),
            ),
            (
                build_lock(&key.build),
                format!("{BUILD}/lock"),
                Place::BuildLock(key.build.clone()),
            ),
            (
                uploads(&key.build, &provider),
                format!("{BUILD}/providers/cloud one/images"),
                Place::Uploads(key.build.clone(), provider.clone()),
            ),
            (
                uploads_lock(&key.build, &provider),
                format!("{BUILD}/providers/cloud one/images/lock"),
                Place::UploadsLock(key.build.clone(), provider.clone()),
            ),
            (
                upload(&key),
                format!("{BUILD}/providers/cloud one/images/0000000003"),
                Place::Upload(key.clone()),
            ),
            (
                upload_lock(&key),
                format!("{BUILD}/providers/cloud one/images/0000000003/lock"),
                Place::UploadLock(key.clone()),
            ),
        ] {
            assert_eq!(made, expected);
            assert_eq!(Place::parse(&made), Some(place.clone()));
            if place.is_lock() {
                let contender = "0f__lock__0000000001";
                assert_eq!(
                    Place::parse(&format!("{made}/{contender}")),
                    Some(Place::Contender(Box::new(place), contender.to_owned()))
                );
            }
        }
        let prefix = component_prefix(ComponentKind::Pool, "np01");
        assert_eq!(
            Place::parse(&format!("{prefix}0000000007")),
            Some(Place::Component(
                ComponentKind::Pool,
                "np010000000007".to_owned()
            ))
        );
        assert_eq!(request_prefix(99), "/nodepool/requests/099-");
    }

    #[test]
    fn other_paths_are_nothing() {
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
            assert_eq!(Place::parse(path), None, "{path}");
        }
    }
}
