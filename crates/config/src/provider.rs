//! Providers: the common keys, and the selection of the driver.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use crate::clouds::CloudsYaml;
use crate::decode::{Decode, Decoder, similar};
use crate::drivers::{
    Aws, Container, Fake, ImageFilter, Kubernetes, Metastatic, OpenShift, OpenShiftPods, OpenStack,
    Qemu, Static,
};
use crate::section::{Describe, Section, TypeInfo, section};
use crate::values::{Concurrency, Limit, Name, Object, PathName, type_info};
use crate::yaml::{Map, Scalar, ScalarType, YamlNode, YamlValue};

const DEFAULT_PRIORITY: i64 = 100;
const DEFAULT_DRIVER: &str = "openstack";
/// Nodepool uses its fake driver for every provider whose name starts like this.
const FAKE_PREFIX: &str = "fake";

section! {
    /// Keys that every provider has.
    #[derive(Default)]
    pub struct ProviderCommon (_outer: ()) {
        /// Name of the provider, unique in the file. It is stored with nodes and uploads.
        "name" name: PathName = required;
        /// How many launches may run at the same time; below 0 any number, 0 switches request handling off.
        "max-concurrency" max_concurrency: Concurrency = default(Concurrency(None));
        /// Providers with a lower number are asked first.
        "priority" priority: i64 = default(DEFAULT_PRIORITY);
    }
}

/// The values that a pool inherits from its provider.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolOuter {
    pub(crate) priority: i64,
    pub(crate) max_servers: Limit,
}

section! {
    /// Keys that every pool has.
    pub struct PoolCommon (outer: PoolOuter) {
        /// Name of the pool, unique in its provider.
        "name" name: Name = required;
        /// How many nodes may exist at once; 0 or less makes the pool decline everything.
        "max-servers" max_servers: Limit = inherit("the provider's, else unlimited", outer.max_servers);
        /// Free attributes, stored with each node.
        "node-attributes" node_attributes: Option<Object> = optional;
        /// Pools with a lower number are asked first.
        "priority" priority: i64 = inherit("the provider's", outer.priority);
    }
}

/// One entry of `providers`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Provider {
    #[serde(flatten)]
    pub common: ProviderCommon,
    #[serde(flatten)]
    pub driver: Driver,
    /// The image format according to clouds.yaml.
    #[serde(skip)]
    pub(crate) cloud_format: Option<String>,
}

/// The driver-specific part of a provider.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "driver", rename_all = "lowercase")]
pub enum Driver {
    Aws(Box<Aws>),
    Container(Box<Container>),
    Fake(Box<Fake>),
    Kubernetes(Box<Kubernetes>),
    Metastatic(Box<Metastatic>),
    OpenShift(Box<OpenShift>),
    OpenShiftPods(Box<OpenShiftPods>),
    OpenStack(Box<OpenStack>),
    Qemu(Box<Qemu>),
    Static(Box<Static>),
}

/// A pool of any driver.
#[derive(Debug, Clone)]
pub struct PoolRef<'p> {
    pub common: &'p PoolCommon,
    pub labels: Vec<LabelRef<'p>>,
}

/// A label of a pool of any driver.
#[derive(Debug, Clone, Copy)]
pub struct LabelRef<'p> {
    pub name: &'p Name,
    pub diskimage: Option<&'p Name>,
    pub cloud_image: Option<&'p Name>,
}

impl<'p> LabelRef<'p> {
    pub(crate) fn without_image(name: &'p Name) -> Self {
        Self {
            name,
            diskimage: None,
            cloud_image: None,
        }
    }
}

/// Evaluates `$body` with the section of the driver.
macro_rules! each_driver {
    ($driver:expr, $section:ident => $body:expr) => {
        match $driver {
            Driver::Aws($section) => $body,
            Driver::Container($section) => $body,
            Driver::Fake($section) => $body,
            Driver::Kubernetes($section) => $body,
            Driver::Metastatic($section) => $body,
            Driver::OpenShift($section) => $body,
            Driver::OpenShiftPods($section) => $body,
            Driver::OpenStack($section) => $body,
            Driver::Qemu($section) => $body,
            Driver::Static($section) => $body,
        }
    };
}

impl Driver {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Aws(_) => "aws",
            Self::Container(_) => "container",
            Self::Fake(_) => "fake",
            Self::Kubernetes(_) => "kubernetes",
            Self::Metastatic(_) => "metastatic",
            Self::OpenShift(_) => "openshift",
            Self::OpenShiftPods(_) => "openshiftpods",
            Self::OpenStack(_) => "openstack",
            Self::Qemu(_) => "qemu",
            Self::Static(_) => "static",
        }
    }
}

impl Provider {
    pub fn name(&self) -> &str {
        &self.common.name
    }

    pub fn pools(&self) -> Vec<PoolRef<'_>> {
        each_driver!(&self.driver, section => section.pools())
    }

    /// Returns the names of the built images that are uploaded to this provider.
    pub fn diskimages(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.diskimages())
    }

    /// Returns those whose uploads are paused.
    pub fn paused_diskimages(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.paused_diskimages())
    }

    /// Returns the names of the existing cloud images.
    pub fn cloud_images(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.cloud_images())
    }

    /// Returns the existing cloud images that are selected by filters.
    pub fn image_filters(&self) -> Vec<(&Name, &[ImageFilter])> {
        each_driver!(&self.driver, section => section.image_filters())
    }

    /// Returns whether images are uploaded to this provider.
    pub fn manages_images(&self) -> bool {
        matches!(
            self.driver,
            Driver::Aws(_)
                | Driver::Container(_)
                | Driver::Fake(_)
                | Driver::OpenStack(_)
                | Driver::Qemu(_)
        )
    }

    /// Returns the format that uploads must have, for a provider that uploads images.
    pub fn image_format(&self) -> Option<&str> {
        match &self.driver {
            Driver::Aws(aws) => Some(aws.image_format.as_str()),
            Driver::Container(_) => Some("tar"),
            Driver::Qemu(_) => Some("qcow2"),
            Driver::Fake(_) | Driver::OpenStack(_) => {
                Some(self.cloud_format.as_deref().unwrap_or("qcow2"))
            }
            _ => None,
        }
    }

    pub(crate) fn resolve_image_format(&mut self, clouds: &CloudsYaml) {
        let (name, settings) = match &self.driver {
            Driver::Fake(section) => (&section.cloud, &section.settings),
            Driver::OpenStack(section) => (&section.cloud, &section.settings),
            _ => return,
        };
        let cloud = clouds.cloud(Some(name), settings.region_name.as_deref());
        self.cloud_format = cloud.ok().and_then(|cloud| cloud.image_format());
    }
}

/// The driver-independent view of a driver's section.
pub(crate) trait DriverSection {
    fn pools(&self) -> Vec<PoolRef<'_>>;

    fn diskimages(&self) -> Vec<&Name> {
        Vec::new()
    }

    fn paused_diskimages(&self) -> Vec<&Name> {
        Vec::new()
    }

    fn cloud_images(&self) -> Vec<&Name> {
        Vec::new()
    }

    fn image_filters(&self) -> Vec<(&Name, &[ImageFilter])> {
        Vec::new()
    }

    /// Checks what needs the whole section.
    fn check(&self, _decoder: &mut Decoder<'_>) {}
}

type ReadSection = fn(&Map, &ProviderCommon, &mut Decoder<'_>) -> Driver;

/// A driver by its name in the file.
pub(crate) struct DriverEntry {
    pub(crate) name: &'static str,
    pub(crate) ours: bool,
    pub(crate) type_info: fn() -> TypeInfo,
    knows: fn(&str) -> bool,
    keys: fn() -> Vec<&'static str>,
    read: ReadSection,
}

macro_rules! driver_entries {
    ($($name:literal $variant:ident $section:ident $([$ours:ident])?;)+) => {
        &[$(DriverEntry {
            name: $name,
            ours: section!(@has ours $($ours)?),
            type_info: <$section as Describe>::type_info,
            knows: <$section as Section<ProviderCommon>>::knows,
            keys: || <$section as Section<ProviderCommon>>::keys().iter().map(|key| key.key).collect(),
            read: |map, common, decoder| {
                Driver::$variant(Box::new(<$section as Section<ProviderCommon>>::fields(map, common, decoder)))
            },
        }),+]
    };
}

pub(crate) const DRIVERS: &[DriverEntry] = driver_entries! {
    "aws" Aws Aws;
    "container" Container Container [ours];
    "fake" Fake Fake;
    "kubernetes" Kubernetes Kubernetes;
    "metastatic" Metastatic Metastatic;
    "openshift" OpenShift OpenShift;
    "openshiftpods" OpenShiftPods OpenShiftPods;
    "openstack" OpenStack OpenStack;
    "qemu" Qemu Qemu [ours];
    "static" Static Static;
};

/// Drivers of Nodepool that are not implemented here.
const MISSING_DRIVERS: &[&str] = &["azure", "gce", "ibmvpc"];

/// Drivers whose configuration is checked, but which are not implemented.
pub(crate) const UNSERVED_DRIVERS: &[&str] = &["aws"];

const USE_NODEPOOL: &str =
    "keep this provider in the file of a Nodepool launcher and leave it out of this one";

/// Describes the drivers that are not implemented.
pub(crate) fn absent_drivers() -> String {
    let quoted = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    format!(
        "{} is only checked, not served; there is no driver yet for {}.",
        quoted(UNSERVED_DRIVERS),
        quoted(MISSING_DRIVERS)
    )
}

impl Decode<()> for Provider {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let map = decoder.map(node, "a mapping")?;
        let driver = choose_driver(map, decoder)?;
        let common = ProviderCommon::fields(map, &(), decoder);
        decoder.unknown_keys(
            map,
            |key| {
                key == "driver"
                    || <ProviderCommon as Section<()>>::knows(key)
                    || (driver.knows)(key)
            },
            || {
                let common = <ProviderCommon as Section<()>>::keys();
                let mut keys: Vec<&str> = vec!["driver"];
                keys.extend(common.iter().map(|key| key.key));
                keys.extend((driver.keys)());
                keys
            },
        );
        let driver = (driver.read)(map, &common, decoder);
        each_driver!(&driver, section => section.check(decoder));
        Some(Self {
            common,
            driver,
            cloud_format: None,
        })
    }
}

fn choose_driver(map: &Map, decoder: &mut Decoder<'_>) -> Option<&'static DriverEntry> {
    let find = |name: &str| {
        DRIVERS
            .iter()
            .find(|driver_entries| driver_entries.name == name)
    };
    let text = |key: &str| match map.set(key).map(|entry| &entry.value.value) {
        Some(YamlValue::Scalar(Scalar {
            kind: ScalarType::Text,
            text,
        })) => Some(text.as_str()),
        _ => None,
    };
    if text("name").is_some_and(|name| name.starts_with(FAKE_PREFIX)) {
        return find("fake");
    }
    let Some(entry) = map.set("driver") else {
        return find(DEFAULT_DRIVER);
    };
    let Some(name) = text("driver") else {
        decoder.wrong_type(&entry.value, "the name of a driver");
        return None;
    };
    let span = entry.value.span;
    if let Some(driver_entries) = find(name) {
        if UNSERVED_DRIVERS.contains(&name) {
            let message = format!(
                "`{name}` providers are checked, but there is no driver yet that serves them"
            );
            decoder
                .warning("no-driver-yet", span, message)
                .map(|finding| finding.help(USE_NODEPOOL));
        }
        return Some(driver_entries);
    }
    if MISSING_DRIVERS.contains(&name) {
        let message = format!("there is no driver yet for `{name}` providers");
        decoder
            .error("no-driver-yet", span, message)
            .map(|finding| finding.help(USE_NODEPOOL));
        return None;
    }
    let quoted = decoder.sources.quote(span, name);
    if let Some(finding) =
        decoder.error("unknown-driver", span, format!("unknown driver `{quoted}`"))
    {
        finding.suggestion = similar(
            name,
            DRIVERS.iter().map(|driver_entries| driver_entries.name),
        );
        finding.allowed = DRIVERS
            .iter()
            .map(|driver_entries| driver_entries.name.to_owned())
            .collect();
    }
    None
}

impl Describe for Provider {
    fn type_info() -> TypeInfo {
        type_info("mapping", json!({"$ref": "#/$defs/Provider"}))
    }
}
