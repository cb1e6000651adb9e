//! Providers: the common keys, and the selection of the driver.

use std::any::Any;
use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use crate::check::FileReferences;
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

impl Driver {
    /// Returns the section, if it has this type.
    pub fn section<S: 'static>(&self) -> Option<&S> {
        let section: &dyn Any = self.as_section();
        section.downcast_ref()
    }

    /// Returns whether there is a driver that serves such providers.
    pub fn is_implemented(&self) -> bool {
        !UNSERVED_DRIVERS.contains(&self.name())
    }
}

impl Provider {
    pub fn name(&self) -> &str {
        &self.common.name
    }

    pub fn pools(&self) -> Vec<PoolRef<'_>> {
        self.driver.as_section().pools()
    }

    /// Returns the names of the built images that are uploaded to this provider.
    pub fn diskimages(&self) -> Vec<&Name> {
        self.driver.as_section().diskimages()
    }

    /// Returns those whose uploads are paused.
    pub fn paused_diskimages(&self) -> Vec<&Name> {
        self.driver.as_section().paused_diskimages()
    }

    /// Returns the names of the existing cloud images.
    pub fn cloud_images(&self) -> Vec<&Name> {
        self.driver.as_section().cloud_images()
    }

    /// Returns the existing cloud images that are selected by filters.
    pub fn image_filters(&self) -> Vec<(&Name, &[ImageFilter])> {
        self.driver.as_section().image_filters()
    }

    /// Returns whether images are uploaded to this provider.
    pub fn manages_images(&self) -> bool {
        self.image_format().is_some()
    }

    /// Returns the format that uploads must have, for a provider that uploads images.
    pub fn image_format(&self) -> Option<&str> {
        let section = self.driver.as_section();
        section.image_format(self.cloud_format.as_deref())
    }

    pub(crate) fn resolve_image_format(&mut self, clouds: &CloudsYaml) {
        let Some((name, region)) = self.driver.as_section().cloud() else {
            return;
        };
        let cloud = clouds.cloud(Some(name), region);
        self.cloud_format = cloud.ok().and_then(|cloud| cloud.image_format());
    }
}

/// The driver-independent view of a driver's section.
pub(crate) trait DriverSection: Any {
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

    /// Returns the format that uploads must have; None if images are not uploaded. `cloud_format` is that of clouds.yaml.
    fn image_format<'s>(&'s self, _cloud_format: Option<&'s str>) -> Option<&'s str> {
        None
    }

    /// Returns the name of the entry of clouds.yaml, and the region.
    fn cloud(&self) -> Option<(&str, Option<&str>)> {
        None
    }

    /// Returns whether several entries of a pool may have the same label.
    fn allows_repeated_labels(&self) -> bool {
        false
    }

    /// Returns whether labels may name an image that is not uploaded to the provider.
    fn allows_images_without_upload(&self) -> bool {
        false
    }

    /// Checks what needs the whole section.
    fn check(&self, _decoder: &mut Decoder<'_>) {}

    /// Checks what needs other sections of the file.
    fn check_references<'c>(
        &'c self,
        _references: &mut FileReferences<'c>,
        _decoder: &mut Decoder<'_>,
    ) {
    }
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

/// Declares the drivers by their names in the file, with the types of their sections.
macro_rules! drivers {
    ($($name:literal $section:ident $([$ours:ident])?;)+) => {
        /// The driver-specific part of a provider.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(tag = "driver")]
        pub enum Driver {
            $(#[serde(rename = $name)] $section(Box<$section>),)+
        }

        impl Driver {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$section(_) => $name,)+
                }
            }

            pub(crate) fn as_section(&self) -> &dyn DriverSection {
                match self {
                    $(Self::$section(section) => &**section,)+
                }
            }
        }

        pub(crate) const DRIVERS: &[DriverEntry] = &[$(DriverEntry {
            name: $name,
            ours: section!(@has ours $($ours)?),
            type_info: <$section as Describe>::type_info,
            knows: <$section as Section<ProviderCommon>>::knows,
            keys: || <$section as Section<ProviderCommon>>::keys().iter().map(|key| key.key).collect(),
            read: |map, common, decoder| {
                Driver::$section(Box::new(<$section as Section<ProviderCommon>>::fields(map, common, decoder)))
            },
        }),+];
    };
}

drivers! {
    "aws" Aws;
    "container" Container [ours];
    "fake" Fake;
    "kubernetes" Kubernetes;
    "metastatic" Metastatic;
    "openshift" OpenShift;
    "openshiftpods" OpenShiftPods;
    "openstack" OpenStack;
    "qemu" Qemu [ours];
    "static" Static;
}

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
        driver.as_section().check(decoder);
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
