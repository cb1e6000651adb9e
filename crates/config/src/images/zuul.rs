//! Images built by Zuul jobs.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use super::Canary;
use crate::decode::{Decode, Decoder, Strictness};
use crate::section::{Describe, TypeInfo, section};
use crate::values::{
    Name, Object, OneOrMany, PathName, Seconds, SecretText, Spanned, Table, check_path_name,
    choice, type_info,
};
use crate::yaml::{Map, YamlNode, YamlValue};

const MIN_POLL_INTERVAL: Seconds = Seconds::new(5);

const OWNED_BY_ZUUL: &[(&str, &str)] = &[
    ("rebuild-age", "Zuul decides when the image is built"),
    ("elements", "the Zuul job decides what is in the image"),
    (
        "env-vars",
        "nothing is run here; set variables in the Zuul job",
    ),
    (
        "dib-cmd",
        "nothing is run here; the Zuul job builds the image",
    ),
    ("release", "the Zuul job decides what is in the image"),
    (
        "build-timeout",
        "Zuul limits its jobs; see `download-timeout`",
    ),
];

section! {
    /// An image that a Zuul job builds; its artifacts are fetched. What an entry does not say it takes from its
    /// `parent`.
    pub(crate) struct ZuulImageEntry (_outer: ()) forbidding OWNED_BY_ZUUL checked by check_entry {
        /// Name of the image, in one namespace with `diskimages`; `job` when absent.
        "name" [ours] name: Option<PathName> = optional;
        /// Whether this is only a parent for others.
        "abstract" [ours] is_abstract: bool = default(false);
        /// Entry of `zuul-images` to take values from.
        "parent" [ours] parent: Option<Name> = optional;
        /// Web root of Zuul.
        "api-url" [ours] api_url: Option<Spanned<String>> = optional;
        /// Whether `http` is allowed, in `api-url` and for artifacts.
        "allow-insecure" [ours] allow_insecure: Option<bool> = optional;
        /// Whether artifacts may be at addresses of private networks, or of this host.
        "allow-private-addresses" [ours] allow_private: Option<bool> = optional;
        /// Tenant; not needed where Zuul's web root shows one tenant only.
        "tenant" [ours] tenant: Option<String> = optional;
        /// Project whose builds count.
        "project" [ours] project: Option<String> = optional;
        /// Pipelines whose builds count; all when absent.
        "pipelines" [ours] pipelines: Option<OneOrMany<String>> = optional;
        /// Branches whose builds count; all when absent.
        "branch" [ours] branch: Option<OneOrMany<String>> = optional;
        /// Job whose builds count.
        "job" [ours] job: Option<Spanned<String>> = optional;
        /// Artifact to import for each format.
        "artifacts" [ours] artifacts: Option<Vec<ArtifactConfig>> = optional;
        /// Formats to import although no provider needs them.
        "formats" [ours] formats: Option<Vec<Spanned<String>>> = optional;
        /// Seconds between two polls of Zuul (default 60, at least 5).
        "poll-interval" [ours] poll_interval: Option<Spanned<Seconds>> = optional;
        /// How to log in at Zuul's API.
        "auth" [ours] auth: Option<Auth> = optional;
        /// Whether downloads use the same credentials.
        "download-auth" [ours] download_auth: Option<DownloadAuth> = optional;
        /// File with further certificates to trust.
        "ca-bundle" [ours] ca_bundle: Option<String> = optional;
        /// Whether a digest must be known (default `if-available`).
        "checksum" [ours] checksum: Option<ChecksumRequirement> = optional;
        /// Whose signature an artifact needs.
        "signature" [ours] signature: Option<SignaturePolicy> = optional;
        /// Largest artifact to accept, in bytes, compressed and uncompressed.
        "max-size" [ours] max_size: Option<u64> = optional;
        /// How long the whole download may take (default 28800).
        "download-timeout" [ours] download_timeout: Option<Seconds> = optional;
        /// How often a download is retried (default 5).
        "download-retries" [ours] download_retries: Option<u64> = optional;
        /// Parallel connections per artifact (default 4).
        "download-connections" [ours] download_connections: Option<Spanned<u64>> = optional;
        /// Maximum bytes per second of downloads.
        "download-rate" [ours] download_rate: Option<u64> = optional;
        /// Age from which Zuul builds are ignored.
        "max-age" [ours] max_age: Option<Seconds> = optional;
        /// User to log in as (default `zuul`).
        "username" [ours] username: Option<String> = optional;
        /// Python interpreter for Ansible (default `auto`).
        "python-path" [ours] python_path: Option<String> = optional;
        /// Shell type for Ansible.
        "shell-type" [ours] shell_type: Option<String> = optional;
        /// Metadata of uploads; not taken from the parent.
        "metadata" [ours] metadata: Object = default(Object::new());
        /// Whether importing is suspended; a child cannot undo its parent's `true`.
        "pause" [ours] pause: bool = default(false);
        /// Whether local files are deleted once every provider has the image.
        "delete-after-upload" [ours] delete_after_upload: Option<bool> = optional;
        /// Formats that are kept after `delete-after-upload`.
        "keep-formats" [ours] keep_formats: Option<Vec<String>> = optional;
        /// How many ready builds are kept, and for each provider how many uploads (default 2).
        "retention" [ours] retention: Option<u64> = optional;
        /// Trial of new builds on some launches.
        "canary" [ours] canary: Option<Canary> = optional;
    }
}

impl ZuulImageEntry {
    /// Returns the name, which defaults to the job's.
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.as_deref().or(self.job.as_ref())
    }
}

fn check_entry(entry: &ZuulImageEntry, map: &Map, decoder: &mut Decoder<'_>) {
    match (&entry.name, &entry.job) {
        (None, Some(job)) => check_path_name(job, decoder),
        (None, None) => {
            decoder.error(
                "missing-key",
                map.head(),
                "a Zuul image needs a `name` or a `job`",
            );
        }
        (Some(_), _) => {}
    }
    if let Some(interval) = &entry.poll_interval
        && interval.value < MIN_POLL_INTERVAL
    {
        decoder.error(
            "out-of-range",
            interval.span,
            "looking at Zuul more often than every 5 seconds is not allowed",
        );
    }
    if let Some(connections) = &entry.download_connections
        && connections.value == 0
    {
        decoder.error(
            "out-of-range",
            connections.span,
            "a download needs at least 1 connection",
        );
    }
    let mut formats: Vec<&str> = Vec::new();
    for artifact in entry
        .artifacts
        .iter()
        .flatten()
        .filter(|artifact| !artifact.format.is_empty())
    {
        if formats.contains(&artifact.format.as_str()) {
            decoder.error(
                "duplicate-name",
                artifact.format.span,
                "another artifact of this image has this format",
            );
        }
        formats.push(&artifact.format);
    }
}

choice! {
    /// How artifacts are compressed.
    enum ArtifactCompression { Auto = "auto", None = "none", Gzip = "gzip", Xz = "xz", Zst = "zst", Bzip2 = "bzip2" }
}

choice! {
    /// Whether a digest must be known.
    enum ChecksumRequirement { IfAvailable = "if-available", Required = "required", Off = "off" }
}

section! {
    /// What to fetch for one format.
    pub struct ArtifactConfig (_outer: ()) {
        /// Format of the image, which is its file extension; `qcow` is read as `qcow2`.
        "format" [ours] format: FormatName = required;
        /// What the artifact's metadata has as `type`.
        "type" [ours] kind: String = required;
        /// Name of the artifact, where the type is not enough.
        "name" [ours] name: Option<String> = optional;
        /// Further metadata the artifact must have.
        "metadata" [ours] metadata: Table<String> = default(Table::<String>::new());
        /// Compression of the artifact; `auto` detects it from the URL.
        "compression" [ours] compression: ArtifactCompression = default(ArtifactCompression::Auto);
    }
}

section! {
    /// Whose signature an artifact needs: a statement, signed with this key, that names the artifact's digest and the
    /// project, pipeline, job and branch it comes from.
    pub struct SignaturePolicy (_outer: ()) {
        /// File with the public key (PEM; ECDSA P-256 or Ed25519).
        "key-file" [ours] key_file: String = required;
    }
}

/// The name of an image format.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct FormatName(pub Name);

impl std::ops::Deref for FormatName {
    type Target = Name;

    fn deref(&self) -> &Name {
        &self.0
    }
}

impl Decode<()> for FormatName {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let mut name = PathName::decode(node, &(), decoder)?.0;
        if name.value == "qcow" {
            name.value.push('2');
        }
        Some(Self(name))
    }
}

impl Describe for FormatName {
    fn type_info() -> TypeInfo {
        PathName::type_info()
    }
}

choice! {
    /// Ways to log in.
    enum AuthKind { None = "none", Bearer = "bearer", Basic = "basic", Mtls = "mtls" }
}

section! {
    /// How to log in. Exactly the keys that the type needs are allowed.
    #[derive(Default)]
    pub struct Auth (_outer: ()) checked by check_auth {
        /// Way to log in.
        "type" [ours] kind: AuthKind = default(AuthKind::None);
        /// File with the token (bearer).
        "token-file" [ours] token_file: Option<String> = optional;
        /// Environment variable with the token (bearer).
        "token-env" [ours] token_env: Option<String> = optional;
        /// The token itself (bearer); only in the secure file.
        "token" [ours secret] token: Option<SecretText> = optional;
        /// User (basic).
        "username" [ours] username: Option<String> = optional;
        /// File with the password (basic).
        "password-file" [ours] password_file: Option<String> = optional;
        /// Client certificate (mtls).
        "cert" [ours] cert: Option<String> = optional;
        /// Key of the client certificate (mtls).
        "key" [ours] key: Option<String> = optional;
    }
}

fn check_auth(auth: &Auth, map: &Map, decoder: &mut Decoder<'_>) {
    let (wanted, others): (&[&str], &[&str]) = match auth.kind {
        AuthKind::None => (
            &[],
            &[
                "token-file",
                "token-env",
                "username",
                "password-file",
                "cert",
                "key",
            ],
        ),
        AuthKind::Bearer => (&[], &["username", "password-file", "cert", "key"]),
        AuthKind::Basic => (
            &["username", "password-file"],
            &["token-file", "token-env", "cert", "key"],
        ),
        AuthKind::Mtls => (
            &["cert", "key"],
            &["token-file", "token-env", "username", "password-file"],
        ),
    };
    let kind = auth.kind.as_str();
    for key in wanted.iter().filter(|key| map.set(key).is_none()) {
        decoder.error(
            "missing-key",
            map.head(),
            format!("`{key}` is required with `type: {kind}`"),
        );
    }
    for entry in others.iter().filter_map(|key| map.set(key)) {
        decoder.error(
            "forbidden-key",
            entry.key_span,
            format!("`{}` has no meaning with `type: {kind}`", entry.key),
        );
    }
    decoder.at_most_one(map, &["token-file", "token-env"], Strictness::Strict);
    if let Some(entry) = map.set("token")
        && decoder
            .sources
            .file(entry.key_span)
            .is_some_and(|file| !file.secure)
    {
        decoder
            .error(
                "forbidden-key",
                entry.key_span,
                "a token is allowed in the secure file only",
            )
            .map(|finding| finding.help("move it there, or use `token-file` or `token-env`"));
    }
}

/// Which credentials downloads use.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownloadAuth {
    None,
    /// Those of the API, for the API's own origin only.
    #[default]
    SameOrigin,
    Explicit(Auth),
}

impl Decode<()> for DownloadAuth {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        if let YamlValue::Map(_) = &node.value {
            return Auth::decode(node, &(), decoder).map(Self::Explicit);
        }
        crate::values::decode_choice(node, &[("none", 0), ("same-origin", 1)], decoder).map(
            |choice| {
                if choice == 0 {
                    Self::None
                } else {
                    Self::SameOrigin
                }
            },
        )
    }
}

impl Describe for DownloadAuth {
    fn type_info() -> TypeInfo {
        let mut described = type_info(
            "`none`, `same-origin`, or a mapping as `auth`",
            json!({"anyOf": [{"enum": ["none", "same-origin"]}, {"$ref": "#/$defs/Auth"}]}),
        );
        described.section = Auth::type_info().section;
        described
    }
}

/// Where and how to download an image.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ZuulImage {
    pub api_url: String,
    pub tenant: Option<String>,
    pub project: String,
    pub pipelines: Vec<String>,
    pub branches: Vec<String>,
    pub job: String,
    pub artifacts: Vec<ArtifactConfig>,
    pub poll_interval: Seconds,
    pub auth: Auth,
    pub download_auth: DownloadAuth,
    pub ca_bundle: Option<String>,
    pub checksum: ChecksumRequirement,
    pub max_size: Option<u64>,
    pub download_timeout: Seconds,
    pub download_retries: u64,
    pub download_connections: u64,
    pub download_rate: Option<u64>,
    pub max_age: Option<Seconds>,
    pub signature: Option<SignaturePolicy>,
    pub allow_insecure: bool,
    pub allow_private: bool,
}
