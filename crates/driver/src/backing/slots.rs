//! The slots of backing nodes, in records. Both formats are those of Python Nodepool, with additions that it ignores.

use std::collections::BTreeMap;

use nodeyard_model::{Label, NodeId, Opaque, Timestamp};
use serde::{Deserialize, Serialize};

/// The slots of a backing node: a JSON text in its `user_data`.
///
/// Nodepool keeps which node has which slot in memory, and in the records of those nodes once they are up. Here it is in
/// `nodes` from the start, so that two launchers never assign the same slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotTable {
    /// Who keeps the node locked: the requestor and the name of its lock contender.
    pub owner: String,
    /// The label of the slots.
    pub label: Label,
    pub slots: u32,
    /// It gets no more nodes, and is released when it has none.
    #[serde(default)]
    pub failed: bool,
    #[serde(default = "long_ago")]
    pub launched: Timestamp,
    /// When a slot last became free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<u32, NodeId>,
}

fn long_ago() -> Timestamp {
    std::time::SystemTime::UNIX_EPOCH.into()
}

impl SlotTable {
    /// Returns None if `user_data` is anything else, or belongs to another owner.
    pub fn read(user_data: &Opaque, owner: &str) -> Option<Self> {
        let table: Self = serde_json::from_str(&user_data.as_string()?).ok()?;
        (table.owner == owner).then_some(table)
    }

    pub fn to_user_data(&self) -> Result<Opaque, serde_json::Error> {
        serde_json::to_string(self).map(|text| Opaque::string(&text))
    }

    pub fn slot_of(&self, node: NodeId) -> Option<u32> {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|(_, other)| **other == node)
            .map(|(slot, _)| *slot)
    }
}

/// The slot of a node, as part of its `driver_data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub backing_node: NodeId,
    pub slot: u32,
}

impl Placement {
    pub fn read(driver_data: &Opaque) -> Option<Self> {
        driver_data.decode().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "NodePool:metastatic:meta";

    #[test]
    fn records_of_python_are_understood() {
        let text = r#"{"owner": "NodePool:metastatic:meta", "label": "slot", "slots": 2, "failed": false, "launched": 1700000000.25}"#;
        let table = SlotTable::read(&Opaque::string(text), OWNER).unwrap();
        assert_eq!(
            (table.label.as_str(), table.slots, table.failed),
            ("slot", 2, false)
        );
        assert_eq!(table.launched.as_secs(), 1_700_000_000.25);
        assert!(table.nodes.is_empty() && table.last_used.is_none());

        let older = r#"{"owner": "NodePool:metastatic:meta", "label": "slot", "slots": 2}"#;
        assert_eq!(
            SlotTable::read(&Opaque::string(older), OWNER)
                .unwrap()
                .launched
                .as_secs(),
            0.0
        );

        let data = Opaque::encode(&serde_json::json!({
            "metadata": {}, "backing_node": "0000000007", "slot": 1, "node": "0000000008",
        }));
        let placement = Placement::read(&data.unwrap()).unwrap();
        assert_eq!(
            (placement.backing_node.to_string().as_str(), placement.slot),
            ("0000000007", 1)
        );
    }

    #[test]
    fn a_slot_table_survives_the_record() {
        let table = SlotTable {
            owner: OWNER.to_owned(),
            label: "slot".into(),
            slots: 8,
            failed: true,
            launched: Timestamp::from_secs(1.5).unwrap(),
            last_used: Timestamp::from_secs(2.5),
            nodes: BTreeMap::from([(3, "0000000008".parse().unwrap())]),
        };
        let read = SlotTable::read(&table.to_user_data().unwrap(), OWNER).unwrap();
        assert_eq!(read, table);
        assert_eq!(read.slot_of("0000000008".parse().unwrap()), Some(3));
        assert_eq!(read.slot_of("0000000009".parse().unwrap()), None);
    }

    #[test]
    fn records_of_others_are_ignored() {
        for other in [
            Opaque::NULL,
            Opaque::string("not json"),
            Opaque::string(
                r#"{"owner": "NodePool:metastatic:other", "label": "slot", "slots": 2}"#,
            ),
            Opaque::string(r#"{"owner": "NodePool:metastatic:meta"}"#),
            Opaque::encode(&serde_json::json!({"zuul_system": "s"})).unwrap(),
        ] {
            assert_eq!(SlotTable::read(&other, OWNER), None);
        }
        assert_eq!(Placement::read(&Opaque::NULL), None);
    }
}
