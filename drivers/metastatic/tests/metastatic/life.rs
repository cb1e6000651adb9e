//! Lives of slots under every fault of the kit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::Metastatic;
use nodeyard_driver::backing::{OwnNode, Placement};
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver};
use nodeyard_model::{Resources, Timestamp};

use crate::yard::{Yard, node, owner, section};

struct SlotBed {
    yard: Arc<Yard>,
    section: Metastatic,
}

impl SlotBed {
    fn new(slots: u32) -> Self {
        let yard = Yard::new();
        // A slot of which only a record tells, as Python Nodepool leaves it.
        let placement = Placement {
            backing_node: node(1_000_002),
            slot: 0,
        };
        let python = OwnNode {
            label: Some("slot".into()),
            launching: false,
            placement: Some(placement),
        };
        yard.change(|survey| survey.own.insert(node(999_999), python));
        Self {
            yard,
            section: section(&format!("max-parallel-jobs: {slots}, grace-time: 60")),
        }
    }

    fn claims(&self) -> BTreeSet<String> {
        let survey = self.yard.survey.borrow();
        let mut claims = BTreeSet::new();
        for (id, held) in &survey.held {
            for (slot, node) in &held.note.as_ref().unwrap().nodes {
                let taken = survey.own.values().any(|own| {
                    own.placement
                        == Some(Placement {
                            backing_node: *id,
                            slot: *slot,
                        })
                });
                assert!(
                    !taken,
                    "slot {slot} of {id} is given to {node}, but is in use"
                );
                claims.insert(format!("{id}/{slot}: {node}"));
            }
        }
        claims
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
        self.claims()
    }

    async fn used(&self) -> Resources {
        let count = i64::try_from(self.claims().len()).unwrap();
        Resources::new(0, count, 0)
    }

    fn now(&self) -> Timestamp {
        self.yard.now()
    }

    async fn wait(&self, time: Duration) {
        self.yard.advance(time);
        self.yard.fulfil();
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
