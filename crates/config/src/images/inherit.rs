//! Resolves the inheritance of image entries.
//!
//! Values of the root of a parent chain come first, and each child overrides them. The rules, which are Nodepool's,
//! differ by key: `elements` are appended, `env-vars` merged, `metadata` not inherited, `pause` can only be switched
//! on, and empty or zero values count as unset.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use indexmap::{IndexMap, IndexSet};

use super::zuul::{Auth, AuthKind, ChecksumRequirement, DownloadAuth, ZuulImage, ZuulImageEntry};
use super::{
    BuildConfig, BuilderKind, Canary, DEFAULT_BUILD_TIMEOUT, DEFAULT_REBUILD_AGE,
    DEFAULT_RETENTION, DiskImageEntry, ImageDefinition, ImageSource,
};
use crate::decode::{Decoder, similar};
use crate::file::{SecureDiskImage, SecureZuulImage};
use crate::source::Span;
use crate::values::{EnvValue, Name, Object, Seconds, Spanned};

/// The maximum length of a chain of parents.
const MAX_CHAIN: usize = 100;
const DEFAULT_POLL: Seconds = Seconds::new(60);

/// Resolves all images, without abstract entries. Both kinds share one namespace.
pub(crate) fn resolve(
    disk_images: &[DiskImageEntry],
    zuul_images: &[ZuulImageEntry],
    secure: &SecureImages<'_>,
    decoder: &mut Decoder<'_>,
) -> IndexMap<String, ImageDefinition> {
    check_zuul_names(disk_images, zuul_images, decoder);
    let mut images = IndexMap::new();
    for (entry, chain) in chains(disk_images, "diskimages", decoder) {
        images.insert(entry.name.to_string(), disk_image(entry, &chain, decoder));
    }
    apply_secure_env(&mut images, secure.disk_images, decoder);
    for (entry, chain) in chains(zuul_images, "zuul-images", decoder) {
        let Some(name) = entry.name() else { continue };
        let image = zuul_image(name, &chain, secure.zuul_images, decoder);
        images.insert(name.value.clone(), image);
    }
    check_secure_zuul(&images, secure.zuul_images, decoder);
    images
}

/// The image entries of the secure file.
pub(crate) struct SecureImages<'f> {
    pub(crate) disk_images: &'f [SecureDiskImage],
    pub(crate) zuul_images: &'f [SecureZuulImage],
}

trait ImageEntry {
    fn name(&self) -> Option<&Name>;
    fn parent(&self) -> Option<&Name>;
    fn is_abstract(&self) -> bool;
    fn common(&self) -> CommonFields<'_>;
}

/// The keys that both kinds of entries have with the same meaning.
struct CommonFields<'e> {
    keep_formats: Option<&'e Vec<String>>,
    delete_after_upload: Option<bool>,
    retention: Option<u64>,
    canary: Option<&'e Canary>,
    pause: bool,
    username: Option<&'e String>,
    python_path: Option<&'e String>,
    shell_type: Option<&'e String>,
    metadata: &'e Object,
}

macro_rules! entry {
    ($entry:ty, |$this:ident| $name:expr) => {
        impl ImageEntry for $entry {
            fn name(&self) -> Option<&Name> {
                let $this = self;
                $name
            }

            fn parent(&self) -> Option<&Name> {
                self.parent.as_ref()
            }

            fn is_abstract(&self) -> bool {
                self.is_abstract
            }

            fn common(&self) -> CommonFields<'_> {
                CommonFields {
                    keep_formats: self.keep_formats.as_ref(),
                    delete_after_upload: self.delete_after_upload,
                    retention: self.retention,
                    canary: self.canary.as_ref(),
                    pause: self.pause,
                    username: self.username.as_ref(),
                    python_path: self.python_path.as_ref(),
                    shell_type: self.shell_type.as_ref(),
                    metadata: &self.metadata,
                }
            }
        }
    };
}

entry!(DiskImageEntry, |entry| Some(&entry.name));
entry!(ZuulImageEntry, |entry| entry.name());

/// Returns each concrete entry with its chain of ancestors, the root first. Of entries with the same name the last is
/// used, as in Nodepool.
fn chains<'e, E: ImageEntry>(
    entries: &'e [E],
    section: &str,
    decoder: &mut Decoder<'_>,
) -> Vec<(&'e E, Vec<&'e E>)> {
    let mut by_name: IndexMap<&str, &E> = IndexMap::with_capacity(entries.len());
    for entry in entries {
        let Some(name) = entry.name().filter(|name| !name.is_empty()) else {
            continue;
        };
        if let Some(earlier) = by_name.insert(name, entry).and_then(ImageEntry::name) {
            let message = format!(
                "`{}` is already the name of another image",
                decoder.quote(name)
            );
            decoder
                .lenient("duplicate-name", name.span, message)
                .map(|finding| finding.label(earlier.span, "the other one"));
        }
    }
    for entry in by_name.values() {
        check_parent(*entry, &by_name, section, decoder);
    }
    by_name
        .values()
        .filter(|entry| !entry.is_abstract())
        .filter_map(|entry| Some((*entry, ancestry(*entry, &by_name)?)))
        .collect()
}

fn check_parent<E: ImageEntry>(
    entry: &E,
    by_name: &IndexMap<&str, &E>,
    section: &str,
    decoder: &mut Decoder<'_>,
) {
    let (Some(name), Some(parent)) = (entry.name(), entry.parent()) else {
        return;
    };
    if !by_name.contains_key(parent.as_str()) {
        let names = by_name.values().filter_map(|entry| entry.name());
        let candidates: Vec<&str> = decoder.sources.public(names).collect();
        let message = format!(
            "there is no entry `{}` in `{section}` to be the parent",
            decoder.quote(parent)
        );
        if let Some(finding) = decoder.error("unknown-parent", parent.span, message) {
            finding.suggestion = similar(parent, candidates.into_iter());
        }
        return;
    }
    let mut circle: Vec<&Name> = vec![name];
    let mut next = Some(parent);
    while let Some(ancestor) = next {
        if ancestor.as_str() == name.as_str() {
            // Every member of the cycle gets here; the first in the file reports it.
            if circle.iter().all(|member| member.span >= name.span) {
                let path: Vec<String> = circle
                    .iter()
                    .chain([&name])
                    .map(|member| decoder.quote(member))
                    .collect();
                let message = format!("parents form a cycle: {}", path.join(" → "));
                decoder.error("cyclic-parent", parent.span, message);
            }
            return;
        }
        if circle.len() > MAX_CHAIN {
            decoder.error(
                "cyclic-parent",
                parent.span,
                format!("more than {MAX_CHAIN} parents above one another"),
            );
            return;
        }
        let Some(found) = by_name.get(ancestor.as_str()) else {
            return;
        };
        // A cycle further up is reported by its own members.
        if circle
            .iter()
            .any(|member| member.as_str() == ancestor.as_str())
        {
            return;
        }
        if let Some(own) = found.name() {
            circle.push(own);
        }
        next = found.parent();
    }
}

/// Returns the chain from the root to `entry`; None if it is endless.
fn ancestry<'e, E: ImageEntry>(
    entry: &'e E,
    by_name: &IndexMap<&str, &'e E>,
) -> Option<Vec<&'e E>> {
    let mut chain = vec![entry];
    let mut next = entry.parent();
    while let Some(parent) = next.and_then(|parent| by_name.get(parent.as_str())) {
        if chain.len() > MAX_CHAIN {
            return None;
        }
        chain.push(parent);
        next = parent.parent();
    }
    chain.reverse();
    Some(chain)
}

/// Returns the value closest to the end of the chain.
fn last<'e, E, T>(chain: &[&'e E], field: impl Fn(&'e E) -> Option<T>) -> Option<T> {
    chain.iter().rev().find_map(|entry| field(entry))
}

fn text(value: Option<&String>) -> Option<String> {
    value.filter(|value| !value.is_empty()).cloned()
}

fn time(value: Option<Seconds>) -> Option<Seconds> {
    value.filter(|value| !value.is_zero())
}

fn count(value: Option<u64>) -> Option<NonZeroUsize> {
    NonZeroUsize::new(usize::try_from(value?).unwrap_or(usize::MAX))
}

fn format_names(value: Option<&Vec<String>>) -> Option<IndexSet<String>> {
    value
        .filter(|value| !value.is_empty())
        .map(|value| value.iter().cloned().collect())
}

fn disk_image(
    entry: &DiskImageEntry,
    chain: &[&DiskImageEntry],
    decoder: &mut Decoder<'_>,
) -> ImageDefinition {
    let mut env_vars: IndexMap<String, EnvValue> = IndexMap::new();
    for entry in chain {
        env_vars.extend(
            entry
                .env_vars
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    let builder = last(chain, |entry| entry.builder).map_or(BuilderKind::Dib, |choice| choice.0);
    let command = match builder {
        BuilderKind::Dib => last(chain, |entry| text(entry.dib_cmd.as_ref()))
            .unwrap_or_else(|| "disk-image-create".into()),
        BuilderKind::Command => {
            last(chain, |entry| text(entry.command.as_ref())).unwrap_or_else(|| {
                decoder
                    .error(
                        "missing-key",
                        entry.name.span,
                        "`command` is required with `builder: command`",
                    )
                    .map(|finding| finding.help("it names the program that builds the image"));
                String::new()
            })
        }
    };
    let source = ImageSource::Build(BuildConfig {
        builder,
        command,
        elements: chain
            .iter()
            .flat_map(|entry| entry.elements.iter().cloned())
            .collect(),
        env_vars,
        release: last(chain, |entry| {
            text(entry.release.as_ref().map(|release| &release.0))
        })
        .unwrap_or_default(),
        rebuild_age: last(chain, |entry| time(entry.rebuild_age)).unwrap_or(DEFAULT_REBUILD_AGE),
        build_timeout: last(chain, |entry| time(entry.build_timeout))
            .unwrap_or(DEFAULT_BUILD_TIMEOUT),
    });
    let formats = last(chain, |entry| format_names(entry.formats.as_ref())).unwrap_or_default();
    image(&entry.name, chain, source, formats, decoder)
}

/// Builds an image of either kind from its source and the common keys.
fn image<E: ImageEntry>(
    name: &Name,
    chain: &[&E],
    source: ImageSource,
    formats: IndexSet<String>,
    decoder: &mut Decoder<'_>,
) -> ImageDefinition {
    let common: Vec<_> = chain.iter().map(|entry| entry.common()).collect();
    let chain: Vec<_> = common.iter().collect();
    let own_metadata = chain.last().map(|entry| entry.metadata.clone());
    ImageDefinition {
        name: name.value.clone(),
        source,
        formats,
        keep_formats: last(&chain, |entry| format_names(entry.keep_formats)).unwrap_or_default(),
        delete_after_upload: last(&chain, |entry| entry.delete_after_upload).unwrap_or(false),
        retention: last(&chain, |entry| count(entry.retention)).unwrap_or(DEFAULT_RETENTION),
        canary: last(&chain, |entry| entry.canary.cloned()),
        pause: chain.iter().any(|entry| entry.pause),
        username: last(&chain, |entry| text(entry.username)).unwrap_or_else(|| "zuul".into()),
        python_path: last(&chain, |entry| text(entry.python_path)).unwrap_or_else(|| "auto".into()),
        shell_type: last(&chain, |entry| text(entry.shell_type)),
        metadata: metadata(own_metadata.unwrap_or_default(), name.span, decoder),
    }
}

fn metadata(metadata: Object, span: Span, decoder: &mut Decoder<'_>) -> Object {
    if metadata.keys().any(|key| key.starts_with("nodepool_")) {
        let message = "metadata of this image that starts with `nodepool_` will be overwritten";
        decoder.warning("reserved-name", span, message);
    }
    metadata
}

fn zuul_image(
    name: &Name,
    chain: &[&ZuulImageEntry],
    secure: &[SecureZuulImage],
    decoder: &mut Decoder<'_>,
) -> ImageDefinition {
    let mut required = |key: &str, value: Option<String>| {
        value.unwrap_or_else(|| {
            let message = format!("`{key}` is required for `{}`", decoder.quote(name));
            decoder.error("missing-key", name.span, message);
            String::new()
        })
    };
    let project = required("project", last(chain, |entry| text(entry.project.as_ref())));
    let job = required("job", last(chain, |entry| text(entry.job.as_deref())));
    let api_url = last(chain, |entry| entry.api_url.as_ref());
    required("api-url", api_url.map(|url| url.value.clone()));
    let allow_insecure = last(chain, |entry| entry.allow_insecure).unwrap_or(false);
    let api_url = api_url
        .and_then(|url| api_root(url, allow_insecure, decoder))
        .unwrap_or_default();

    let artifacts = last(chain, |entry| entry.artifacts.clone()).unwrap_or_default();
    if artifacts.is_empty() {
        decoder.error(
            "missing-key",
            name.span,
            format!("`artifacts` is required for `{}`", decoder.quote(name)),
        );
    }
    let wanted = last(chain, |entry| entry.formats.clone()).unwrap_or_default();
    for format in &wanted {
        if !artifacts.is_empty()
            && !artifacts
                .iter()
                .any(|artifact| artifact.format.as_str() == format.as_str())
        {
            missing_format(format, None, decoder);
        }
    }
    let mut auth = last(chain, |entry| entry.auth.clone()).unwrap_or_default();
    if let Some(given) = secure
        .iter()
        .find(|given| given.name.as_str() == name.as_str())
    {
        auth.token = given.auth.token.clone();
    }
    check_token(&auth, name, decoder);
    let source = ImageSource::Zuul(Box::new(ZuulImage {
        api_url,
        tenant: last(chain, |entry| text(entry.tenant.as_ref())),
        project,
        pipelines: last(chain, |entry| entry.pipelines.clone())
            .unwrap_or_default()
            .0,
        branches: last(chain, |entry| entry.branch.clone())
            .unwrap_or_default()
            .0,
        job,
        artifacts,
        poll_interval: last(chain, |entry| entry.poll_interval.clone())
            .map_or(DEFAULT_POLL, |interval| interval.value),
        auth,
        download_auth: last(chain, |entry| entry.download_auth.clone())
            .unwrap_or(DownloadAuth::SameOrigin),
        ca_bundle: last(chain, |entry| text(entry.ca_bundle.as_ref())),
        checksum: last(chain, |entry| entry.checksum).unwrap_or(ChecksumRequirement::IfAvailable),
        max_size: last(chain, |entry| entry.max_size),
        download_timeout: last(chain, |entry| time(entry.download_timeout))
            .unwrap_or(DEFAULT_BUILD_TIMEOUT),
        download_retries: last(chain, |entry| entry.download_retries).unwrap_or(5),
        download_connections: last(chain, |entry| entry.download_connections.clone())
            .map_or(4, |number| number.value),
        download_rate: last(chain, |entry| entry.download_rate),
        max_age: last(chain, |entry| time(entry.max_age)),
        signature: last(chain, |entry| entry.signature.clone()),
        allow_insecure,
        allow_private: last(chain, |entry| entry.allow_private).unwrap_or(false),
    }));
    let wanted = wanted.into_iter().map(|format| format.value).collect();
    image(name, chain, source, wanted, decoder)
}

/// Reports that an image is not available in a format; `wanted_by` is the format that a provider needs.
pub(crate) fn missing_format(format: &Name, wanted_by: Option<&str>, decoder: &mut Decoder<'_>) {
    let quoted = decoder.quote(format);
    let missing = wanted_by.unwrap_or(&quoted).to_owned();
    let message = match wanted_by {
        Some(wanted) => format!(
            "this provider needs `{quoted}` in format `{wanted}`, and no artifact of the image has it"
        ),
        None => format!("no artifact of this image has the format `{quoted}`"),
    };
    decoder
        .error("missing-format", format.span, message)
        .map(|finding| {
            finding.help(format!(
                "add an entry `{{format: {missing}, type: ...}}` to `artifacts` of the image; if the job publishes \
                 another disk format only, this one is made of it"
            ))
        });
}

fn check_token(auth: &Auth, name: &Name, decoder: &mut Decoder<'_>) {
    if auth.kind == AuthKind::Bearer
        && auth.token.is_none()
        && auth.token_file.is_none()
        && auth.token_env.is_none()
    {
        let message =
            "`type: bearer` needs `token-file`, `token-env`, or a `token` in the secure file";
        decoder.error("missing-key", name.span, message);
    }
}

/// Returns the root URL of Zuul's API, without a trailing slash.
fn api_root(
    url: &Spanned<String>,
    allow_insecure: bool,
    decoder: &mut Decoder<'_>,
) -> Option<String> {
    let rest = if let Some(rest) = url.strip_prefix("https://") {
        rest
    } else if let Some(rest) = url.strip_prefix("http://") {
        if !allow_insecure {
            decoder
                .error(
                    "insecure-url",
                    url.span,
                    "what Zuul says over plain http can be forged on the way",
                )
                .map(|finding| finding.help("use https, or set `allow-insecure: true`"));
        }
        rest
    } else {
        decoder.error("bad-url", url.span, "this is not an http or https URL");
        return None;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        decoder.findings.secrets.push(url.span);
        decoder
            .error("bad-url", url.span, "credentials in a URL end up in logs")
            .map(|finding| finding.help("use `auth`"));
        return None;
    }
    if authority.is_empty() || rest.contains(['?', '#', ' ']) {
        decoder.error(
            "bad-url",
            url.span,
            "this must be the web root of Zuul, without a query",
        );
        return None;
    }
    let root = url.trim_end_matches('/');
    Some(if root.ends_with("/api") {
        root.to_owned()
    } else {
        format!("{root}/api")
    })
}

fn check_zuul_names(
    disk_images: &[DiskImageEntry],
    zuul_images: &[ZuulImageEntry],
    decoder: &mut Decoder<'_>,
) {
    let mut known: HashMap<&str, Span> = disk_images
        .iter()
        .map(|entry| (entry.name.as_str(), entry.name.span))
        .collect();
    for name in zuul_images.iter().filter_map(ImageEntry::name) {
        if let Some(other) = known.insert(name, name.span) {
            let message = format!(
                "`{}` is already the name of another image",
                decoder.quote(name)
            );
            decoder
                .error("duplicate-name", name.span, message)
                .map(|finding| finding.label(other, "the other one"));
        }
    }
}

fn apply_secure_env(
    images: &mut IndexMap<String, ImageDefinition>,
    secure: &[SecureDiskImage],
    decoder: &mut Decoder<'_>,
) {
    for given in secure {
        match images.get_mut(given.name.as_str()) {
            Some(ImageDefinition {
                source: ImageSource::Build(build),
                ..
            }) => {
                build.env_vars.extend(
                    given
                        .env_vars
                        .iter()
                        .map(|(name, value)| (name.clone(), value.clone())),
                );
            }
            _ => unknown_secure_image(&given.name, "diskimages", decoder),
        }
    }
}

fn check_secure_zuul(
    images: &IndexMap<String, ImageDefinition>,
    secure: &[SecureZuulImage],
    decoder: &mut Decoder<'_>,
) {
    for given in secure {
        if !matches!(
            images.get(given.name.as_str()),
            Some(ImageDefinition {
                source: ImageSource::Zuul(_),
                ..
            })
        ) {
            unknown_secure_image(&given.name, "zuul-images", decoder);
        }
    }
}

fn unknown_secure_image(name: &Name, section: &str, decoder: &mut Decoder<'_>) {
    if name.is_empty() {
        return;
    }
    let message = format!(
        "there is no image `{}` in `{section}` of the main file",
        decoder.quote(name)
    );
    decoder
        .error("unknown-image", name.span, message)
        .map(|finding| finding.help("abstract images cannot be named here"));
}
