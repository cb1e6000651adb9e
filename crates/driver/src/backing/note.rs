//! What is written down about shared machines. Both forms are Python Nodepool's, with additions that it overlooks.

use std::collections::BTreeMap;

use nodeyard_model::{Label, NodeId, Opaque, Timestamp};
use serde::{Deserialize, Serialize};

/// `user_data` of a node that carries others: a JSON text inside the record.
///
/// Nodepool keeps which node has which slot in its memory, and in the records of those nodes once they are up. Here
/// it is in `nodes` from the start, so that no two launchers give out the same slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Who holds the node: the requestor and the name of its lock contender.
    pub owner: String,
    /// The label of the nodes that it carries.
    pub label: Label,
    pub slots: u32,
    /// It gets no more nodes, and goes when it carries none.
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

impl Note {
    /// None if it is no note, or somebody else's.
    pub fn read(user_data: &Opaque, owner: &str) -> Option<Self> {
        let note: Self = serde_json::from_str(&user_data.as_string()?).ok()?;
        (note.owner == owner).then_some(note)
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

/// The part of a carried node's `driver_data` that says where it is.
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
    fn what_python_writes_is_understood() {
        let text = r#"{"owner": "NodePool:metastatic:meta", "label": "slot", "slots": 2, "failed": false, "launched": 1700000000.25}"#;
        let note = Note::read(&Opaque::string(text), OWNER).unwrap();
        assert_eq!(
            (note.label.as_str(), note.slots, note.failed),
            ("slot", 2, false)
        );
        assert_eq!(note.launched.as_secs(), 1_700_000_000.25);
        assert!(note.nodes.is_empty() && note.last_used.is_none());

        let older = r#"{"owner": "NodePool:metastatic:meta", "label": "slot", "slots": 2}"#;
        assert_eq!(
            Note::read(&Opaque::string(older), OWNER)
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
    fn a_note_survives_the_record() {
        let note = Note {
            owner: OWNER.to_owned(),
            label: "slot".into(),
            slots: 8,
            failed: true,
            launched: Timestamp::from_secs(1.5).unwrap(),
            last_used: Timestamp::from_secs(2.5),
            nodes: BTreeMap::from([(3, "0000000008".parse().unwrap())]),
        };
        let read = Note::read(&note.to_user_data().unwrap(), OWNER).unwrap();
        assert_eq!(read, note);
        assert_eq!(read.slot_of("0000000008".parse().unwrap()), Some(3));
        assert_eq!(read.slot_of("0000000009".parse().unwrap()), None);
    }

    #[test]
    fn what_others_write_is_no_note_of_ours() {
        for other in [
            Opaque::NULL,
            Opaque::string("not json"),
            Opaque::string(
                r#"{"owner": "NodePool:metastatic:other", "label": "slot", "slots": 2}"#,
            ),
            Opaque::string(r#"{"owner": "NodePool:metastatic:meta"}"#),
            Opaque::encode(&serde_json::json!({"zuul_system": "s"})).unwrap(),
        ] {
            assert_eq!(Note::read(&other, OWNER), None);
        }
        assert_eq!(Placement::read(&Opaque::NULL), None);
    }
}
