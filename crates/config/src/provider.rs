//! Providers: what all of them share, and the choice of driver.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use crate::clouds::Clouds;
use crate::decode::{Decode, Decoder, similar};
use crate::drivers::{
    Aws, Container, Fake, ImageFilter, Kubernetes, Metastatic, OpenShift, OpenShiftPods, OpenStack,
    Qemu, Static,
};
use crate::section::{Describe, Section, Shape, section};
use crate::values::{Concurrency, Limit, Name, Object, PathName, shape};
use crate::yaml::{Kind, Map, Node, Scalar, Value};

const DEFAULT_PRIORITY: i64 = 100;
const DEFAULT_DRIVER: &str = "openstack";
/// Nodepool gives every provider whose name starts like this to its fake driver.
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

/// What a pool takes from its provider.
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
    /// From clouds.yaml, where that says it.
    #[serde(skip)]
    pub(crate) cloud_format: Option<String>,
}

/// The driver's own part of a provider.
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

/// Does `$body` with the driver's section, whichever it is.
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

    /// Names of the built images this provider takes uploads of.
    pub fn diskimages(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.diskimages())
    }

    /// Those of them whose uploads are suspended.
    pub fn paused_diskimages(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.paused_diskimages())
    }

    /// Names of the images that exist in the cloud already.
    pub fn cloud_images(&self) -> Vec<&Name> {
        each_driver!(&self.driver, section => section.cloud_images())
    }

    /// The images that exist in the cloud already and are chosen by conditions.
    pub fn image_filters(&self) -> Vec<(&Name, &[ImageFilter])> {
        each_driver!(&self.driver, section => section.image_filters())
    }

    /// Whether images are uploaded to this provider.
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

    /// The format uploads must have, for a provider that takes any.
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

    pub(crate) fn settle_format(&mut self, clouds: &Clouds) {
        let (name, settings) = match &self.driver {
            Driver::Fake(section) => (&section.cloud, &section.settings),
            Driver::OpenStack(section) => (&section.cloud, &section.settings),
            _ => return,
        };
        let cloud = clouds.cloud(Some(name), settings.region_name.as_deref());
        self.cloud_format = cloud.ok().and_then(|cloud| cloud.image_format());
    }
}

/// The part of a driver's section that is read without knowing the driver.
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

    /// What can only be judged with the whole provider at hand.
    fn check(&self, _decoder: &mut Decoder<'_>) {}
}

type Read = fn(&Map, &ProviderCommon, &mut Decoder<'_>) -> Driver;

/// A driver as the file names it.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) ours: bool,
    pub(crate) shape: fn() -> Shape,
    knows: fn(&str) -> bool,
    keys: fn() -> Vec<&'static str>,
    read: Read,
}

macro_rules! known {
    ($($name:literal $variant:ident $section:ident $([$ours:ident])?;)+) => {
        &[$(Known {
            name: $name,
            ours: section!(@has ours $($ours)?),
            shape: <$section as Describe>::shape,
            knows: <$section as Section<ProviderCommon>>::knows,
            keys: || <$section as Section<ProviderCommon>>::keys().iter().map(|key| key.key).collect(),
            read: |map, common, decoder| {
                Driver::$variant(Box::new(<$section as Section<ProviderCommon>>::fields(map, common, decoder)))
            },
        }),+]
    };
}

pub(crate) const DRIVERS: &[Known] = known! {
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

/// Drivers Nodepool has and we do not.
const MISSING_DRIVERS: &[&str] = &["azure", "gce", "ibmvpc"];

/// Drivers whose configuration is understood, and whose nodes somebody else has to make.
pub(crate) const UNSERVED_DRIVERS: &[&str] = &["aws"];

const ELSEWHERE: &str =
    "keep this provider in the file of a Nodepool launcher and leave it out of this one";

/// The drivers of which we have only the configuration, or nothing.
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
    fn decode(node: &Rc<Node>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let map = decoder.map(node, "a mapping")?;
        let driver = choose(map, decoder)?;
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

fn choose(map: &Map, decoder: &mut Decoder<'_>) -> Option<&'static Known> {
    let find = |name: &str| DRIVERS.iter().find(|known| known.name == name);
    let text = |key: &str| match map.set(key).map(|entry| &entry.value.value) {
        Some(Value::Scalar(Scalar {
            kind: Kind::Text,
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
    if let Some(known) = find(name) {
        if UNSERVED_DRIVERS.contains(&name) {
            let message = format!(
                "`{name}` providers are checked, but there is no driver yet that serves them"
            );
            decoder
                .warning("no-driver-yet", span, message)
                .map(|finding| finding.help(ELSEWHERE));
        }
        return Some(known);
    }
    if MISSING_DRIVERS.contains(&name) {
        let message = format!("there is no driver yet for `{name}` providers");
        decoder
            .error("no-driver-yet", span, message)
            .map(|finding| finding.help(ELSEWHERE));
        return None;
    }
    let quoted = decoder.sources.quote(span, name);
    if let Some(finding) =
        decoder.error("unknown-driver", span, format!("unknown driver `{quoted}`"))
    {
        finding.suggestion = similar(name, DRIVERS.iter().map(|known| known.name));
        finding.allowed = DRIVERS.iter().map(|known| known.name.to_owned()).collect();
    }
    None
}

impl Describe for Provider {
    fn shape() -> Shape {
        shape("mapping", json!({"$ref": "#/$defs/Provider"}))
    }
}
