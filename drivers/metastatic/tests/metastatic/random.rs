//! Random events: no slot is assigned twice, no backing node in use is released, and every launch ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_driver::backing::{Placement, SlotNode};
use nodeyard_driver::kit::Faults;
use nodeyard_driver::{Instance, Machines as _, Target};
use nodeyard_driver_metastatic::MetastaticDriver;
use nodeyard_model::{Label, NodeId};
use proptest::prelude::*;
use tokio::time::advance;

use crate::maintenance::{Operation, background, create, order};
use crate::yard::{Yard, node, section};

const KEYS: &str = "max-parallel-jobs: 2, grace-time: 60, max-age: 600";

#[derive(Debug, Clone)]
enum Event {
    Launch(bool),
    /// Lets some launch proceed.
    Proceed(usize),
    /// Cancels some launch and starts it again.
    Repeat(usize),
    Delete(usize),
    Fulfil,
    Fail,
    Maintain,
    Pass(u64),
    Unreachable(usize),
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(Event::Launch),
        6 => any::<usize>().prop_map(Event::Proceed),
        2 => any::<usize>().prop_map(Event::Repeat),
        3 => any::<usize>().prop_map(Event::Delete),
        2 => Just(Event::Fulfil),
        1 => Just(Event::Fail),
        4 => Just(Event::Maintain),
        2 => (1_u64..400).prop_map(Event::Pass),
        1 => any::<usize>().prop_map(Event::Unreachable),
        1 => Just(Event::Restart),
    ]
}

struct Run {
    yard: Arc<Yard>,
    driver: Arc<MetastaticDriver>,
    background: Operation<()>,
    next: u64,
    launching: BTreeMap<NodeId, (&'static str, Operation<Instance>)>,
    up: BTreeMap<NodeId, Placement>,
}

impl Run {
    fn new() -> Self {
        let yard = Yard::new();
        let driver = Arc::new(yard.driver(&section(KEYS), &Faults::none()));
        Self {
            background: background(&driver),
            driver,
            yard,
            next: 0,
            launching: BTreeMap::new(),
            up: BTreeMap::new(),
        }
    }

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Launch(other) => {
                self.next += 1;
                let (id, label) = (node(self.next), if other { "other" } else { "slot" });
                let record = SlotNode {
                    label: Some(Label::new(label)),
                    request: None,
                    created: None,
                    launching: true,
                    placement: None,
                };
                self.yard
                    .change(|snapshot| snapshot.slot_nodes.insert(id, record));
                let create = create(&self.driver, order(id, label));
                self.launching.insert(id, (label, create));
            }
            Event::Proceed(index) => {
                if let Some(id) = pick(&self.launching, index) {
                    self.proceed(id).await;
                }
            }
            Event::Repeat(index) => {
                if let Some(id) = pick(&self.launching, index) {
                    let (label, operation) = self.launching.get_mut(&id).unwrap();
                    let mut order = order(id, label);
                    order.first_attempt = false;
                    *operation = create(&self.driver, order);
                }
            }
            Event::Delete(index) => {
                let everybody = self.launching.keys().chain(self.up.keys());
                let everybody: BTreeMap<NodeId, ()> = everybody.map(|id| (*id, ())).collect();
                if let Some(id) = pick(&everybody, index) {
                    self.delete(id).await;
                }
            }
            Event::Fulfil => self.yard.fulfil(),
            Event::Fail => self.yard.fail(),
            Event::Maintain => {
                let end = self.background.as_mut().now_or_never();
                assert!(end.is_none(), "{end:?}");
            }
            Event::Pass(seconds) => advance(Duration::from_secs(seconds)).await,
            Event::Unreachable(index) => {
                if let Some(id) = pick(&self.up, index) {
                    let external_id = id.to_string().as_str().into();
                    let marked = self.driver.mark_unreachable(id, &external_id);
                    marked.await.unwrap();
                }
            }
            Event::Restart => {
                // A new launcher does not continue the launches of the old one.
                self.driver = Arc::new(self.yard.driver(&section(KEYS), &Faults::none()));
                self.background = background(&self.driver);
                for id in self.launching.keys().copied().collect::<Vec<_>>() {
                    self.delete(id).await;
                }
            }
        }
        self.check();
    }

    async fn proceed(&mut self, id: NodeId) {
        let (_, create) = self.launching.get_mut(&id).unwrap();
        match create.as_mut().now_or_never() {
            Some(Ok(instance)) => {
                let placement = Placement::read(&instance.driver_data).unwrap();
                self.launching.remove(&id);
                self.up.insert(id, placement);
                self.yard.change(|snapshot| {
                    let record = snapshot.slot_nodes.get_mut(&id).unwrap();
                    record.launching = false;
                    record.placement = Some(placement);
                });
            }
            Some(Err(_)) => self.delete(id).await,
            None => {}
        }
    }

    async fn delete(&mut self, id: NodeId) {
        self.launching.remove(&id);
        self.up.remove(&id);
        let target = Target::Node {
            node: id,
            external_id: None,
        };
        self.driver.delete(&target).await.unwrap();
        self.yard.change(|snapshot| snapshot.slot_nodes.remove(&id));
    }

    fn check(&self) {
        let snapshot = self.yard.snapshot.borrow();
        let mut places: Vec<_> = self.up.values().map(|p| (p.backing_node, p.slot)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), self.up.len(), "a slot is assigned twice");
        for (id, placement) in &self.up {
            assert_eq!(snapshot.placement_of(*id), Some(*placement));
            assert!(placement.slot < 2);
        }
    }

    /// From here on nothing fails: every launch ends, and after all deletions nothing is left.
    async fn settle(mut self) {
        for _ in 0..50 {
            for id in self.launching.keys().copied().collect::<Vec<_>>() {
                self.proceed(id).await;
            }
            self.happen(Event::Maintain).await;
            self.happen(Event::Fulfil).await;
        }
        assert_eq!(self.launching.len(), 0, "a launch never ends");
        for id in self.up.keys().copied().collect::<Vec<_>>() {
            self.delete(id).await;
        }
        self.happen(Event::Pass(3600)).await;
        self.happen(Event::Maintain).await;
        let snapshot = self.yard.snapshot.borrow();
        let left = (snapshot.requests.len(), snapshot.backing_nodes.len());
        assert_eq!(left, (0, 0));
    }
}

fn pick<V>(map: &BTreeMap<NodeId, V>, index: usize) -> Option<NodeId> {
    map.keys().nth(index.checked_rem(map.len())?).copied()
}

proptest! {
    #[test]
    fn slots_are_assigned_once_and_every_launch_ends(events in prop::collection::vec(event(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run::new();
            for event in events {
                run.happen(event).await;
            }
            run.settle().await;
        });
    }
}
