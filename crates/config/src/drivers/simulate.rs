//! `simulate`: how the simulated cloud of `driver: fake` behaves.

use std::rc::Rc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::decode::{Decode, Decoder};
use crate::section::{Describe, TypeInfo, section};
use crate::values::{Seconds, Table, type_info};
use crate::yaml::{Map, YamlNode, YamlValue};

section! {
    /// The simulated cloud.
    #[derive(Default)]
    pub struct Simulate (_outer: ()) {
        /// How long a machine takes to become active: seconds, or `{min, max}` to draw from.
        "boot-time" [ours] boot_time: SimulatedTime = default(SimulatedTime::default());
        /// How long a machine takes to disappear.
        "delete-time" [ours] delete_time: SimulatedTime = default(SimulatedTime::default());
        /// How long an upload takes.
        "upload-time" [ours] upload_time: SimulatedTime = default(SimulatedTime::default());
        /// What the cloud admits.
        "quota" [ours] quota: SimulatedQuota = default(SimulatedQuota::default());
        /// What goes wrong, by the name of the call; `*` is any call.
        "failures" [ours] failures: Failures = default(Failures::new());
        /// Availability zones; empty is a sensible set.
        "zones" [ours] zones: Vec<String> = default(Vec::<String>::new());
        /// Flavors; empty is a sensible set.
        "flavors" [ours] flavors: Vec<SimulatedFlavor> = default(Vec::<SimulatedFlavor>::new());
        /// Names of images that exist from the start.
        "images" [ours] images: Vec<String> = default(Vec::<String>::new());
        /// Names of networks; empty is a sensible set.
        "networks" [ours] networks: Vec<String> = default(Vec::<String>::new());
        /// Start of the random numbers.
        "seed" [ours] seed: u64 = default(0);
    }
}

/// A time, or a range of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimulatedTime {
    pub min: Seconds,
    pub max: Seconds,
}

impl Serialize for SimulatedTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.min == self.max {
            return self.min.serialize(serializer);
        }
        let mut range = serializer.serialize_struct("SimulatedTime", 2)?;
        range.serialize_field("min", &self.min)?;
        range.serialize_field("max", &self.max)?;
        range.end()
    }
}

section! {
    /// Both ends of a range of times.
    pub(crate) struct TimeRange (_outer: ()) checked by check_range {
        /// Shortest time.
        "min" [ours] min: Seconds = default(Seconds::new(0));
        /// Longest time.
        "max" [ours] max: Seconds = required;
    }
}

fn check_range(range: &TimeRange, map: &Map, decoder: &mut Decoder<'_>) {
    if range.min > range.max && map.set("max").is_some() {
        decoder.error("out-of-range", map.head(), "`min` is larger than `max`");
    }
}

impl Decode<()> for SimulatedTime {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => decoder
                .section::<TimeRange, ()>(node, &())
                .map(|range| Self {
                    min: range.min,
                    max: range.max,
                }),
            _ => Seconds::decode(node, &(), decoder).map(|time| Self {
                min: time,
                max: time,
            }),
        }
    }
}

impl Describe for SimulatedTime {
    fn type_info() -> TypeInfo {
        let seconds = Seconds::type_info().schema;
        let range = json!({"type": "object", "properties": {"min": seconds, "max": seconds}, "required": ["max"], "additionalProperties": false});
        type_info(
            "seconds, or a mapping of `min` and `max`",
            json!({"anyOf": [seconds, range]}),
        )
    }
}

section! {
    /// Limits of the simulated cloud; -1 is no limit.
    pub struct SimulatedQuota (_outer: ()) {
        /// Cores.
        "cores" [ours] cores: i64 = default(100);
        /// Machines.
        "instances" [ours] instances: i64 = default(20);
        /// Memory in MB.
        "ram" [ours] ram: i64 = default(1_000_000);
        /// Volumes.
        "volumes" [ours] volumes: i64 = default(100);
        /// Volume storage in GB.
        "volume-gb" [ours] volume_gb: i64 = default(1_000_000);
    }
}

impl Default for SimulatedQuota {
    fn default() -> Self {
        Self {
            cores: 100,
            instances: 20,
            ram: 1_000_000,
            volumes: 100,
            volume_gb: 1_000_000,
        }
    }
}

/// Failures by the name of the call.
pub type Failures = Table<Failure>;

section! {
    /// How a call of the simulated cloud fails. Rates are from 0 to 1.
    pub struct Failure (_outer: ()) checked by check_failure {
        /// Rate of error answers.
        "error" [ours] error: f64 = default(0.0);
        /// Rate of calls that are done but not answered.
        "lost" [ours] lost: f64 = default(0.0);
        /// Rate of calls that never return.
        "hang" [ours] hang: f64 = default(0.0);
        /// Class of the error answers.
        "class" [ours] class: String = default("HttpException".to_owned());
    }
}

fn check_failure(failure: &Failure, map: &Map, decoder: &mut Decoder<'_>) {
    for (key, rate) in [
        ("error", failure.error),
        ("lost", failure.lost),
        ("hang", failure.hang),
    ] {
        if !(0.0..=1.0).contains(&rate)
            && let Some(entry) = map.set(key)
        {
            decoder.error(
                "out-of-range",
                entry.value.span,
                "a rate is a number from 0 to 1",
            );
        }
    }
}

section! {
    /// A size of simulated machine.
    pub struct SimulatedFlavor (_outer: ()) {
        /// Name.
        "name" [ours] name: String = required;
        /// Memory in MB.
        "ram" [ours] ram: u64 = default(8192);
        /// Cores.
        "vcpus" [ours] vcpus: u64 = default(4);
        /// Disk in GB.
        "disk" [ours] disk: u64 = default(40);
    }
}
