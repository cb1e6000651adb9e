//! The resolved configuration.

use indexmap::IndexMap;
use serde::Serialize;

use crate::check::{self, ReferenceTargets};
use crate::clouds::CloudsYaml;
use crate::decode::Decoder;
use crate::file::{
    LabelConfig, MainFile, SecureFile, TenantLimits, WebappConfig, ZooKeeperServerConfig,
    ZooKeeperTls,
};
use crate::images::{self, Auth, DownloadAuth, ImageDefinition, ImageSource, SecureImages};
use crate::provider::Provider;
use crate::service::{ApiConfig, BuilderWebapp, GearmanListen, GearmanServer};
use crate::size::Size;
use crate::values::{Name, Seconds};

/// A valid configuration. Serialises to JSON with secrets masked.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    pub webapp: WebappConfig,
    pub elements_dir: Option<String>,
    pub images_dir: Option<String>,
    /// Space that stays free on the file system of `images_dir`.
    pub images_dir_reserve: Size,
    pub images_dir_limit: Option<Size>,
    /// The assumed size of an image's first build.
    pub image_size_estimate: Size,
    pub build_log_dir: String,
    /// Logs kept per image; `None` keeps all.
    pub build_log_retention: Option<u64>,
    /// None if the embedded store is used.
    pub zookeeper: Option<ZooKeeperConfig>,
    pub state_dir: Option<String>,
    pub gearman_servers: Vec<GearmanServer>,
    pub gearman_listen: Option<GearmanListen>,
    /// Patterns of image names that this builder works on; `None` means all of `images`.
    pub builder_images: Option<Vec<String>>,
    pub builder_webapp: Option<BuilderWebapp>,
    pub api: ApiConfig,
    pub max_hold_age: Option<Seconds>,
    pub labels: IndexMap<String, LabelConfig>,
    /// Images built here or by Zuul, without abstract entries.
    pub images: IndexMap<String, ImageDefinition>,
    pub providers: IndexMap<String, Provider>,
    pub tenant_resource_limits: IndexMap<String, TenantLimits>,
}

/// How to connect to ZooKeeper.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ZooKeeperConfig {
    pub servers: Vec<ZooKeeperServerConfig>,
    /// Path below which everything is kept; empty for the root.
    pub chroot: String,
    pub tls: Option<ZooKeeperTls>,
    pub timeout: Seconds,
}

impl ZooKeeperConfig {
    /// Returns `host:port` of every server, with brackets around IPv6 addresses.
    pub fn addresses(&self) -> Vec<String> {
        let address = |server: &ZooKeeperServerConfig| {
            let host = server.host.as_str();
            let bare_v6 = host.contains(':') && !host.starts_with('[');
            if bare_v6 {
                format!("[{host}]:{}", server.port.0)
            } else {
                format!("{host}:{}", server.port.0)
            }
        };
        self.servers.iter().map(address).collect()
    }
}

impl Config {
    /// Sets the image formats of providers from clouds.yaml.
    pub(crate) fn resolve_image_formats(&mut self, clouds: &CloudsYaml) {
        for provider in self.providers.values_mut() {
            provider.resolve_image_format(clouds);
        }
    }

    /// Combines the two files and checks what spans several sections.
    pub(crate) fn resolve(
        file: MainFile,
        secure: Option<SecureFile>,
        decoder: &mut Decoder<'_>,
    ) -> Self {
        let (secure_disk, secure_zuul) = match &secure {
            Some(secure) => (secure.diskimages.as_slice(), &*secure.zuul_images),
            None => (&[][..], &[][..]),
        };
        let secure_images = SecureImages {
            disk_images: secure_disk,
            zuul_images: secure_zuul,
        };
        let images = images::resolve(&file.diskimages, &file.zuul_images, &secure_images, decoder);

        let secure_servers = secure
            .as_ref()
            .map(|secure| secure.zookeeper_servers.clone())
            .filter(|servers| !servers.is_empty());
        let servers = secure_servers.unwrap_or(file.zookeeper_servers);
        let tls = secure
            .and_then(|secure| secure.zookeeper_tls)
            .or(file.zookeeper_tls);
        let zookeeper = zookeeper(servers, tls, file.zookeeper_timeout, decoder);

        let known = ReferenceTargets {
            labels: &file.labels,
            disk_images: &file.diskimages,
            zuul_images: &file.zuul_images,
            images: &images,
        };
        check::check_references(&file.providers, &known, decoder);
        let labels = by_name(file.labels, |label| &label.name, "label", decoder);
        let providers = by_name(
            file.providers,
            |provider| &provider.common.name,
            "provider",
            decoder,
        );
        let tenants = by_name(
            file.tenant_resource_limits,
            |limits| &limits.named.tenant_name,
            "tenant",
            decoder,
        );
        Self {
            webapp: file.webapp,
            elements_dir: file.elements_dir,
            images_dir: file.images_dir,
            images_dir_reserve: file.images_dir_reserve,
            images_dir_limit: file.images_dir_limit,
            image_size_estimate: file.image_size_estimate,
            build_log_dir: file.build_log_dir,
            // Nodepool prunes before it writes the next log, so a retention of 0 keeps one.
            build_log_retention: u64::try_from(file.build_log_retention)
                .ok()
                .map(|kept| kept.max(1)),
            zookeeper,
            state_dir: file.state_dir,
            gearman_servers: file.gearman_servers,
            gearman_listen: file.gearman_listen,
            builder_images: file.builder_images.map(|patterns| patterns.0),
            builder_webapp: file.builder_webapp,
            api: file.api,
            max_hold_age: file.max_hold_age.0,
            labels,
            images,
            providers,
            tenant_resource_limits: tenants,
        }
    }

    /// Returns the environment variables that hold secrets: the values of all `*-env` keys.
    pub fn secret_variables(&self) -> impl Iterator<Item = &str> {
        let tokens = self.api.tokens.iter().map(|token| &token.token_env);
        let logins = self.image_logins().map(|login| &login.token_env);
        tokens.chain(logins).flatten().map(String::as_str)
    }

    /// Returns how the sources of images log in, for their API and for downloads.
    fn image_logins(&self) -> impl Iterator<Item = &Auth> {
        self.images.values().flat_map(|image| match &image.source {
            ImageSource::Zuul(zuul) => {
                let download = match &zuul.download_auth {
                    DownloadAuth::Explicit(auth) => Some(auth),
                    DownloadAuth::None | DownloadAuth::SameOrigin => None,
                };
                [Some(&zuul.auth), download].into_iter().flatten()
            }
            ImageSource::Build(_) => [None, None].into_iter().flatten(),
        })
    }

    /// Returns the provider with this name.
    pub fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.get(name)
    }

    /// Returns the providers that `image` is uploaded to.
    pub fn providers_of_image<'c>(&'c self, image: &'c str) -> impl Iterator<Item = &'c Provider> {
        self.providers.values().filter(move |provider| {
            provider
                .diskimages()
                .iter()
                .any(|name| name.as_str() == image)
        })
    }
}

/// Indexes entries by name; of duplicates the later one is used, as in Nodepool.
fn by_name<T>(
    entries: Vec<T>,
    name_of: fn(&T) -> &Name,
    kind: &str,
    decoder: &mut Decoder<'_>,
) -> IndexMap<String, T> {
    let mut map: IndexMap<String, T> = IndexMap::with_capacity(entries.len());
    for entry in entries {
        let name = name_of(&entry).clone();
        if name.is_empty() {
            continue;
        }
        if let Some(earlier) = map.insert(name.value.clone(), entry) {
            let message = format!(
                "`{}` is already the name of another {kind}",
                decoder.quote(&name)
            );
            if let Some(finding) = decoder.lenient("duplicate-name", name.span, message) {
                finding.label(name_of(&earlier).span, "the other one, which is ignored");
            }
        }
    }
    map
}

fn zookeeper(
    servers: Vec<ZooKeeperServerConfig>,
    tls: Option<ZooKeeperTls>,
    timeout: Seconds,
    decoder: &mut Decoder<'_>,
) -> Option<ZooKeeperConfig> {
    let last = servers.last()?;
    let chroot = last
        .chroot
        .as_ref()
        .filter(|chroot| !chroot.is_empty())
        .cloned();
    let expected = chroot.as_ref().map_or("", |chroot| chroot.as_str());
    for server in &servers {
        let own = server.chroot.as_ref().filter(|chroot| !chroot.is_empty());
        if let Some(own) = own
            && own.as_str() != expected
        {
            decoder
                .error(
                    "mixed-chroot",
                    own.span,
                    "the ensemble has one chroot, and this differs from the last server's",
                )
                .map(|finding| {
                    finding.help("write the same on every server, or only on the last one")
                });
        }
    }
    if let Some(chroot) = &chroot {
        let bad = !chroot.starts_with('/')
            || chroot.ends_with('/')
            || chroot
                .split('/')
                .skip(1)
                .any(|part| part.is_empty() || part == "." || part == "..");
        if bad {
            decoder
                .error("bad-name", chroot.span, "a chroot is a path such as `/ci`")
                .map(|finding| finding.help("start it with `/` and do not end it with one"));
        }
    }
    for server in servers
        .iter()
        .filter(|server| server.host.contains(['/', ',', ' ']))
    {
        decoder.error(
            "bad-name",
            server.host.span,
            "this is not a host name or address",
        );
    }
    let chroot = expected.to_owned();
    Some(ZooKeeperConfig {
        servers,
        chroot,
        tls,
        timeout,
    })
}
