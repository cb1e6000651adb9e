//! The list of labels.

use std::collections::BTreeSet;

use nodeyard_model::{Label, PoolComponent, Timestamp};

use crate::table::{Cell, RecordTable};

/// Lists every label that a registered pool offers.
pub fn labels<'a>(
    pools: impl IntoIterator<Item = &'a PoolComponent>,
    now: Timestamp,
) -> RecordTable {
    let labels: BTreeSet<&str> = pools
        .into_iter()
        .flat_map(|pool| &pool.supported_labels)
        .map(Label::as_str)
        .collect();
    let rows = labels.into_iter().map(|label| vec![Cell::text(label)]);
    RecordTable::new(&[("label", "Label")], rows.collect(), now)
}
