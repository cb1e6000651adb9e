//! The top-level sections of the main file and of the secure file.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use crate::decode::{Decode, Decoder};
use crate::images::{Auth, DiskImageEntry, ZuulImageEntry};
use crate::listeners::check as check_listeners;
use crate::provider::Provider;
use crate::section::{Describe, Section, SectionInfo, TypeInfo, section};
use crate::service::{ApiConfig, BuilderWebapp, GearmanListen, GearmanServer};
use crate::size::Size;
use crate::values::{EnvValue, Limit, MaybeSeconds, Name, OneOrMany, Port, Seconds, Table};
use crate::yaml::YamlNode;

section! {
    /// Every section is reached from these keys.
    pub(crate) struct MainFile (_outer: ()) checked by check_listeners {
        /// The status pages of the launcher.
        "webapp" webapp: WebappConfig = default(WebappConfig::default());
        /// Directories of elements, passed to builds as `ELEMENTS_PATH`.
        "elements-dir" elements_dir: Option<String> = optional;
        /// Where built images are kept; builders need it.
        "images-dir" images_dir: Option<String> = optional;
        /// Disk space that stays free on the file system of `images-dir`; work that would need it is refused.
        "images-dir-reserve" [ours] images_dir_reserve: Size = default(Size::gib(1));
        /// Maximum size of `images-dir`; unlimited when absent.
        "images-dir-limit" [ours] images_dir_limit: Option<Size> = optional;
        /// Estimated size of the first build of an image; later estimates are based on existing builds.
        "image-size-estimate" [ours] image_size_estimate: Size = default(Size::gib(1));
        /// Where logs of builds are kept.
        "build-log-dir" build_log_dir: String = default("/var/log/nodepool/builds".to_owned());
        /// Logs kept per image; below 0 all.
        "build-log-retention" build_log_retention: i64 = default(7);
        /// The ZooKeeper ensemble.
        "zookeeper-servers" zookeeper_servers: Vec<ZooKeeperServerConfig> = default(Vec::<ZooKeeperServerConfig>::new());
        /// Certificates for ZooKeeper.
        "zookeeper-tls" zookeeper_tls: Option<ZooKeeperTls> = optional;
        /// Session time-out with ZooKeeper.
        "zookeeper-timeout" zookeeper_timeout: Seconds = default(Seconds::new(10));
        /// Directory of the embedded store; the platform's state directory when absent.
        "state-dir" [ours] state_dir: Option<String> = optional;
        /// Gearman job servers; a private one inside the process when absent.
        "gearman-servers" [ours] gearman_servers: Vec<GearmanServer> = default(Vec::<GearmanServer>::new());
        /// A job server in this process for other hosts. Without it, and without `gearman-servers`, only this user can reach the server.
        "gearman-listen" [ours] gearman_listen: Option<GearmanListen> = optional;
        /// Patterns of image names this builder works on; all of its images when absent.
        "builder-images" [ours] builder_images: Option<OneOrMany<String>> = optional;
        /// The web pages of a builder; on loopback when absent, and disabled there if the port is in use.
        "builder-webapp" [ours] builder_webapp: Option<BuilderWebapp> = optional;
        /// The HTTP API; on loopback when absent.
        "api" [ours] api: ApiConfig = default(ApiConfig::default());
        /// How long a node may be held; 0 or less is unlimited.
        "max-hold-age" max_hold_age: MaybeSeconds = default(MaybeSeconds(None));
        /// Kinds of nodes that can be requested.
        "labels" labels: Vec<LabelConfig> = default(Vec::<LabelConfig>::new());
        /// Images that are built here.
        "diskimages" diskimages: Vec<DiskImageEntry> = default(Vec::<DiskImageEntry>::new());
        /// Images that Zuul jobs build. Python builders on the same store would delete them.
        "zuul-images" [ours] zuul_images: OneOrMany<ZuulImageEntry> = default(OneOrMany::<ZuulImageEntry>::default());
        /// Places that have nodes.
        "providers" providers: Vec<Provider> = default(Vec::<Provider>::new());
        /// Limits per tenant.
        "tenant-resource-limits" tenant_resource_limits: Vec<TenantLimits> = default(Vec::<TenantLimits>::new());
    }
}

section! {
    /// The status pages of the launcher.
    pub struct WebappConfig (_outer: ()) {
        /// Port.
        "port" port: Port = default(Port(8005));
        /// Address to listen on.
        "listen_address" listen_address: String = default("0.0.0.0".to_owned());
    }
}

impl Default for WebappConfig {
    fn default() -> Self {
        Self {
            port: Port(8005),
            listen_address: "0.0.0.0".into(),
        }
    }
}

section! {
    /// A server of the ZooKeeper ensemble.
    pub struct ZooKeeperServerConfig (_outer: ()) {
        /// Name or address.
        "host" host: Name = required;
        /// Port.
        "port" port: Port = default(Port(2281));
        /// Path below which everything is kept; the same on all servers, or on the last one only.
        "chroot" chroot: Option<Name> = optional;
    }
}

section! {
    /// Certificates for ZooKeeper, as paths of PEM files.
    pub struct ZooKeeperTls (_outer: ()) {
        /// Client certificate.
        "cert" cert: String = required;
        /// Key of the client certificate.
        "key" key: String = required;
        /// Certificates of the authorities to trust.
        "ca" ca: String = required;
        /// Whether the name in the server's certificate must be the host's.
        "verify-hostname" [ours] verify_hostname: bool = default(false);
    }
}

section! {
    /// A kind of node that can be requested.
    pub struct LabelConfig (_outer: ()) {
        /// Name, as pools and Zuul's nodesets refer to it.
        "name" name: Name = required;
        /// How many nodes are kept ready; -1 switches the label off.
        "min-ready" min_ready: i64 = default(0);
        /// Age from which ready nodes are deleted; 0 is never.
        "max-ready-age" max_ready_age: MaybeSeconds = default(MaybeSeconds(None));
        /// Whether requests wait for an image that is being built or uploaded; otherwise only leases do.
        "wait-for-image" [ours] wait_for_image: bool = default(false);
    }
}

section! {
    /// The named limits of a tenant.
    pub struct TenantLimitsNamed (_outer: ()) {
        /// Name of the tenant.
        "tenant-name" tenant_name: Name = required;
        /// Limit of nodes.
        "max-servers" max_servers: Limit = default(Limit::NONE);
        /// Limit of cores.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limit of volumes.
        "max-volumes" max_volumes: Limit = default(Limit::NONE);
        /// Limit of volume storage in GB.
        "max-volume-gb" max_volume_gb: Limit = default(Limit::NONE);
    }
}

/// Limits of a tenant over all providers. Any further key is the name of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantLimits {
    #[serde(flatten)]
    pub named: TenantLimitsNamed,
    #[serde(flatten)]
    pub resources: Table<u64>,
}

impl Decode<()> for TenantLimits {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let map = decoder.map(node, "a mapping")?;
        let named = TenantLimitsNamed::fields(map, &(), decoder);
        let others = map
            .entries
            .iter()
            .filter(|entry| !TenantLimitsNamed::knows(&entry.key) && !entry.value.is_null());
        let resources = others.filter_map(|entry| {
            u64::decode(&entry.value, &(), decoder).map(|limit| (entry.key.clone(), limit))
        });
        Some(Self {
            named,
            resources: resources.collect(),
        })
    }
}

impl Describe for TenantLimits {
    fn type_info() -> TypeInfo {
        TypeInfo {
            text: "mapping".into(),
            schema: crate::section::reference("TenantLimits"),
            section: Some(|| {
                SectionInfo {
                name: "TenantLimits",
                doc: "Limits of a tenant over all providers. Any further key is the name of a resource.".into(),
                keys: TenantLimitsNamed::keys(),
                other_keys: Some(json!({"type": "integer", "minimum": 0})),
            }
            }),
        }
    }
}

section! {
    /// The secure file: what it says goes over the main file.
    pub(crate) struct SecureFile (_outer: ()) {
        /// Replaces the main file's list.
        "zookeeper-servers" zookeeper_servers: Vec<ZooKeeperServerConfig> = default(Vec::<ZooKeeperServerConfig>::new());
        /// Replaces the main file's certificates.
        "zookeeper-tls" zookeeper_tls: Option<ZooKeeperTls> = optional;
        /// Secret variables of builds.
        "diskimages" diskimages: Vec<SecureDiskImage> = default(Vec::<SecureDiskImage>::new());
        /// Tokens for Zuul's API.
        "zuul-images" [ours] zuul_images: OneOrMany<SecureZuulImage> = default(OneOrMany::<SecureZuulImage>::default());
    }
}

section! {
    /// Variables of the build of one image.
    pub(crate) struct SecureDiskImage (_outer: ()) {
        /// Name of an entry of `diskimages` in the main file.
        "name" name: Name = required;
        /// Variables, over those of the main file.
        "env-vars" [secret] env_vars: Table<EnvValue> = required;
    }
}

section! {
    /// The token of one image.
    pub(crate) struct SecureZuulImage (_outer: ()) {
        /// Name of an entry of `zuul-images` in the main file.
        "name" [ours] name: Name = required;
        /// Holds the `token`.
        "auth" [ours] auth: Auth = required;
    }
}
