//! Labels of slots in the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_config::{Metastatic, MetastaticLabel};
use nodeyard_model::{Label, PoolName};

/// The labels of a provider. Where two pools have the same one, the first counts, as in Nodepool.
pub(crate) type Labels = BTreeMap<Label, LabelOptions>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LabelOptions {
    pub(crate) pool: PoolName,
    /// The label of the backing nodes.
    pub(crate) backing_label: Label,
    /// Slots on one backing node.
    pub(crate) slots: u32,
    /// How long an idle backing node is kept.
    pub(crate) grace_time: Duration,
    /// The age until which a backing node is kept in any case.
    pub(crate) min_retention: Duration,
    /// The age from which a backing node gets no new nodes.
    pub(crate) max_age: Option<Duration>,
    pub(crate) host_key_checking: bool,
}

pub(crate) fn labels(section: &Metastatic) -> Labels {
    let mut labels = Labels::new();
    for pool in &section.pools {
        for label in &pool.labels {
            let name = Label::new(label.name.as_str());
            let options = || options(PoolName::new(pool.common.name.as_str()), label);
            labels.entry(name).or_insert_with(options);
        }
    }
    labels
}

fn options(pool: PoolName, label: &MetastaticLabel) -> LabelOptions {
    LabelOptions {
        pool,
        backing_label: Label::new(label.backing_label.as_str()),
        slots: u32::try_from(label.max_parallel_jobs)
            .unwrap_or(u32::MAX)
            .max(1),
        grace_time: *label.grace_time,
        min_retention: *label.min_retention_time,
        max_age: label.max_age.map(|age| *age).filter(|age| !age.is_zero()),
        host_key_checking: label.host_key_checking,
    }
}
