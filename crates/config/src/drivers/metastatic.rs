//! `driver: metastatic`: slots on nodes of another provider.

use std::collections::HashMap;

use crate::check::FileReferences;
use crate::decode::Decoder;
use crate::provider::{DriverSection, LabelRef, PoolCommon, PoolOuter, PoolRef, ProviderCommon};
use crate::section::section;
use crate::values::{Limit, Name, Seconds};
use crate::yaml::Map;

section! {
    /// Slots on nodes that are requested from other providers.
    pub struct Metastatic (outer: ProviderCommon) {
        /// How long a machine may take until SSH answers.
        "boot-timeout" boot_timeout: Seconds = default(Seconds::new(120));
        /// How long a slot may take to become ready.
        "launch-timeout" launch_timeout: Seconds = default(Seconds::new(3600));
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// Operations per second.
        "rate" rate: f64 = default(1.0);
        /// Groups of labels.
        "pools" pools: Vec<MetastaticPool> = default(Vec::<MetastaticPool>::new()) in (PoolOuter { priority: outer.priority, max_servers: Limit::NONE });
    }
}

section! {
    /// A group of labels.
    pub struct MetastaticPool (outer: PoolOuter) including common: PoolCommon (*outer) {
        /// Whether the host key is checked each time a slot is given out.
        "host-key-checking" host_key_checking: bool = default(false);
        /// Labels of this pool.
        "labels" labels: Vec<MetastaticLabel> = default(Vec::<MetastaticLabel>::new()) in (host_key_checking);
    }
}

section! {
    /// A label whose nodes are slots.
    pub struct MetastaticLabel (host_key_checking_of_pool: bool) checked by check_label {
        /// Name of an entry of `labels` at the top of the file.
        "name" name: Name = required;
        /// Label of the nodes that hold the slots.
        "backing-label" backing_label: Name = required;
        /// Slots on one node.
        "max-parallel-jobs" max_parallel_jobs: u64 = default(1);
        /// How long a node without used slots is kept.
        "grace-time" grace_time: Seconds = default(Seconds::new(60));
        /// Age before which a node is not given back.
        "min-retention-time" min_retention_time: Seconds = default(Seconds::new(0));
        /// Age from which a node gets no new slots.
        "max-age" max_age: Option<Seconds> = optional;
        /// Whether the host key is checked each time a slot is given out.
        "host-key-checking" host_key_checking: bool = inherit("the pool's", *host_key_checking_of_pool);
    }
}

fn check_label(label: &MetastaticLabel, map: &Map, decoder: &mut Decoder<'_>) {
    if let (Some(max_age), Some(entry)) = (label.max_age, map.set("max-age"))
        && max_age < label.min_retention_time
    {
        decoder.error(
            "out-of-range",
            entry.value.span,
            "`max-age` is shorter than `min-retention-time`",
        );
    }
}

impl MetastaticLabel {
    /// Returns whether both describe the same backing nodes.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        self.max_parallel_jobs == other.max_parallel_jobs
            && self.grace_time == other.grace_time
            && self.min_retention_time == other.min_retention_time
            && self.max_age == other.max_age
    }
}

impl DriverSection for Metastatic {
    fn pools(&self) -> Vec<PoolRef<'_>> {
        let pools = self.pools.iter().map(|pool| PoolRef {
            common: &pool.common,
            labels: pool
                .labels
                .iter()
                .map(|label| LabelRef::without_image(&label.name))
                .collect(),
        });
        pools.collect()
    }

    /// Checks that all labels with the same backing label describe the same backing nodes.
    fn check_references<'c>(
        &'c self,
        references: &mut FileReferences<'c>,
        decoder: &mut Decoder<'_>,
    ) {
        let mut targets: HashMap<&str, &MetastaticLabel> = HashMap::new();
        for label in self.pools.iter().flat_map(|pool| &pool.labels) {
            if label.backing_label.is_empty() {
                continue;
            }
            if !references
                .label_names
                .contains_key(label.backing_label.as_str())
            {
                let quoted = decoder.quote(&label.backing_label);
                let message = format!(
                    "there is no label `{quoted}` in this file, so another launcher must serve it"
                );
                decoder.warning("unknown-label", label.backing_label.span, message);
            }
            match targets.get(label.backing_label.as_str()) {
                Some(first) if !first.agrees_with(label) => {
                    let message = "labels with the same `backing-label` must agree in `max-parallel-jobs`, `grace-time`, `min-retention-time` and `max-age`";
                    decoder
                        .error("backing-label-mismatch", label.backing_label.span, message)
                        .map(|finding| {
                            finding.label(first.backing_label.span, "differs from this one")
                        });
                }
                Some(_) => {}
                None => {
                    targets.insert(&label.backing_label, label);
                }
            }
        }
    }
}
