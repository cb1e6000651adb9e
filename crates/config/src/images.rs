//! Images, built here (`diskimages`) or by Zuul jobs (`zuul-images`).
//!
//! Entries hold what the file contains; [`ImageDefinition`] is the result after inheritance. Both kinds share one
//! namespace and are the same to providers.

mod inherit;
mod zuul;

use std::num::NonZeroUsize;
use std::rc::Rc;

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

use crate::decode::{Decode, Decoder};
use crate::section::{Describe, TypeInfo, section};
use crate::values::{EnvValue, Name, Object, PathName, Seconds, Table, choice, type_info};
use crate::yaml::{Map, YamlNode};

pub(crate) use inherit::{SecureImages, missing_format, resolve};
pub(crate) use zuul::ZuulImageEntry;
pub use zuul::{
    ArtifactCompression, ArtifactConfig, Auth, AuthKind, ChecksumRequirement, DownloadAuth,
    FormatName, SignaturePolicy, ZuulImage,
};

const DEFAULT_BUILD_TIMEOUT: Seconds = Seconds::new(8 * 60 * 60);
const DEFAULT_REBUILD_AGE: Seconds = Seconds::new(24 * 60 * 60);
const DEFAULT_RETENTION: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

choice! {
    /// What builds an image.
    enum BuilderKind {
        /// diskimage-builder.
        Dib = "dib",
        /// Any other program.
        Command = "command",
    }
}

section! {
    /// An image that is built here. What an entry does not say it takes from its `parent`.
    pub(crate) struct DiskImageEntry (_outer: ()) {
        /// Name of the image, unique in the file; part of file names and paths in the store.
        "name" name: PathName = required;
        /// Whether this is only a parent for others; no image is made of it.
        "abstract" is_abstract: bool = default(false);
        /// Entry to take values from.
        "parent" parent: Option<Name> = optional;
        /// What builds the image.
        "builder" [ours] builder: Option<BuilderChoice> = optional;
        /// Elements; they follow those of the parent.
        "elements" elements: Vec<String> = default(Vec::<String>::new());
        /// Variables of the build; they are merged over those of the parent.
        "env-vars" env_vars: Table<EnvValue> = default(Table::<EnvValue>::new());
        /// Formats to build although no provider needs them.
        "formats" formats: Option<Vec<String>> = optional;
        /// Formats that are kept after `delete-after-upload`.
        "keep-formats" keep_formats: Option<Vec<String>> = optional;
        /// Whether local files are deleted once every provider has the image.
        "delete-after-upload" delete_after_upload: Option<bool> = optional;
        /// Whether builds are suspended; a child cannot undo its parent's `true`.
        "pause" pause: bool = default(false);
        /// Age from which an image is built again (default 86400).
        "rebuild-age" rebuild_age: Option<Seconds> = optional;
        /// How many ready builds are kept, and for each provider how many uploads (default 2).
        "retention" [ours] retention: Option<u64> = optional;
        /// Trial of new builds on some launches.
        "canary" [ours] canary: Option<Canary> = optional;
        /// How long a build may take (default 28800).
        "build-timeout" build_timeout: Option<Seconds> = optional;
        /// Release, passed to the build as `DIB_RELEASE`.
        "release" release: Option<AnyText> = optional;
        /// User to log in as (default `zuul`).
        "username" username: Option<String> = optional;
        /// Python interpreter for Ansible (default `auto`).
        "python-path" python_path: Option<String> = optional;
        /// Shell type for Ansible.
        "shell-type" shell_type: Option<String> = optional;
        /// Program that builds, with its first arguments (default `disk-image-create`).
        "dib-cmd" dib_cmd: Option<String> = optional;
        /// Program that builds, with its first arguments, for `builder: command`.
        "command" [ours] command: Option<String> = optional;
        /// Metadata of uploads; not taken from the parent.
        "metadata" metadata: Object = default(Object::new());
    }
}

section! {
    /// Trial of new builds on some launches before all launches use them. Without this, all launches use new builds at once.
    pub struct Canary (_outer: ()) checked by check_canary {
        /// Percentage of launches that use the new build during its trial.
        "share" [ours] share: u64 = default(10);
        /// Successful launches after which all launches use it.
        "successes" [ours] successes: u64 = default(10);
        /// Percentage of failed launches above which the build is rolled back.
        "failure-limit" [ours] failure_limit: u64 = default(20);
    }
}

fn check_canary(canary: &Canary, map: &Map, decoder: &mut Decoder<'_>) {
    for (key, value, least, most) in [
        ("share", canary.share, 1, 100),
        ("successes", canary.successes, 1, 1_000_000),
        ("failure-limit", canary.failure_limit, 0, 99),
    ] {
        if let Some(entry) = map.set(key)
            && !(least..=most).contains(&value)
        {
            let message = format!("`{key}` has to be between {least} and {most}");
            decoder.error("out-of-range", entry.key_span, message);
        }
    }
}

/// A [`BuilderKind`], with a better error for one that is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct BuilderChoice(pub(crate) BuilderKind);

impl Decode<()> for BuilderChoice {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        if decoder.scalar(node, "text")?.text == "snapshot" {
            decoder.error(
                "not-yet",
                node.span,
                "images from snapshots cannot be made yet",
            );
            return None;
        }
        BuilderKind::decode(node, &(), decoder).map(Self)
    }
}

impl Describe for BuilderChoice {
    fn type_info() -> TypeInfo {
        BuilderKind::type_info()
    }
}

/// Text that is often written as a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct AnyText(pub(crate) String);

impl Decode<()> for AnyText {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder
            .scalar(node, "text or a number")
            .map(|scalar| Self(scalar.text.clone()))
    }
}

impl Describe for AnyText {
    fn type_info() -> TypeInfo {
        type_info(
            "text or number",
            serde_json::json!({"type": ["string", "number"]}),
        )
    }
}

/// An image after inheritance.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageDefinition {
    pub name: String,
    pub source: ImageSource,
    /// Formats requested by the entry itself; providers add theirs.
    pub formats: IndexSet<String>,
    pub keep_formats: IndexSet<String>,
    pub delete_after_upload: bool,
    /// How many ready builds are kept, and for each provider how many uploads.
    pub retention: NonZeroUsize,
    pub canary: Option<Canary>,
    pub pause: bool,
    pub username: String,
    pub python_path: String,
    pub shell_type: Option<String>,
    pub metadata: Object,
}

/// How an image is obtained.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// Built by this program's builders.
    Build(BuildConfig),
    /// Built by a Zuul job and downloaded.
    Zuul(Box<ZuulImage>),
}

/// How an image is built here.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BuildConfig {
    pub builder: BuilderKind,
    pub command: String,
    pub elements: Vec<String>,
    pub env_vars: IndexMap<String, EnvValue>,
    pub release: String,
    pub rebuild_age: Seconds,
    pub build_timeout: Seconds,
}
