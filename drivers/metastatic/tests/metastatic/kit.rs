//! Slots under every fault of the kit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::Metastatic;
use nodeyard_driver::backing::{Placement, SlotNode};
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver};
use nodeyard_model::Resources;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::yard::{Yard, node, owner, section};

struct SlotBed {
    yard: Arc<Yard>,
    section: Metastatic,
    /// Other providers. They stop when it is dropped.
    _others: JoinSet<()>,
}

impl SlotBed {
    fn new(slots: u32) -> Self {
        let yard = Yard::new();
        // A slot that only a record names, as Python Nodepool leaves it.
        let placement = Placement {
            backing_node: node(1_000_002),
            slot: 0,
        };
        let python = SlotNode {
            label: Some("slot".into()),
            request: None,
            created: None,
            launching: false,
            placement: Some(placement),
        };
        yard.change(|snapshot| snapshot.slot_nodes.insert(node(999_999), python));
        let mut others = JoinSet::new();
        others.spawn({
            let yard = Arc::clone(&yard);
            async move {
                loop {
                    sleep(Duration::from_millis(10)).await;
                    yard.fulfil();
                }
            }
        });
        Self {
            _others: others,
            yard,
            section: section(&format!("max-parallel-jobs: {slots}, grace-time: 60")),
        }
    }

    fn assigned(&self) -> BTreeSet<String> {
        let snapshot = self.yard.snapshot.borrow();
        let mut assigned = BTreeSet::new();
        for (id, backing) in &snapshot.backing_nodes {
            for (slot, node) in &backing.slots.as_ref().unwrap().nodes {
                let placement = Placement {
                    backing_node: *id,
                    slot: *slot,
                };
                let mut others = snapshot.slot_nodes.values();
                assert!(
                    others.all(|other| other.placement != Some(placement)),
                    "slot {slot} of {id} is assigned to {node}, but is in use"
                );
                assigned.insert(format!("{id}/{slot}: {node}"));
            }
        }
        assigned
    }
}

#[async_trait]
impl Bed for SlotBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        Box::new(self.yard.driver(&self.section, faults))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner(),
            pool: "main".into(),
            label: "slot".into(),
            image: BootImage::Cloud,
            upload: None,
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        self.assigned()
    }

    async fn used(&self) -> Resources {
        let count = i64::try_from(self.assigned().len()).unwrap();
        Resources::new(0, count, 0)
    }

    async fn wait(&self, time: Duration) {
        sleep(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slots_survive_every_fault() {
    for (slots, nodes) in [(1, 2), (2, 3), (8, 2)] {
        let suite = Suite {
            nodes,
            pairs: Some(7),
            ..Suite::default()
        };
        let report = explore(suite, || async { SlotBed::new(slots) }).await;
        let report = report.unwrap_or_else(|failure| {
            let cause = std::error::Error::source(&failure).map(ToString::to_string);
            panic!("{slots} slots, {nodes} nodes, {failure}: {cause:?}")
        });
        assert!(report.points > 10 && report.runs > 100, "{report:?}");
    }
}
