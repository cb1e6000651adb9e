//! Anything in any order: no slot is ever given twice, no machine with jobs is given back, and everybody is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::backing::{OwnNode, Placement};
use nodeyard_driver::kit::Faults;
use nodeyard_driver::{Driver, State, Step, Target};
use nodeyard_driver_metastatic::MetastaticDriver;
use nodeyard_model::{Label, NodeId};
use proptest::prelude::*;

use crate::care::order;
use crate::yard::{Yard, node, section};

const KEYS: &str = "max-parallel-jobs: 2, grace-time: 60, max-age: 600";

#[derive(Debug, Clone)]
enum Event {
    Launch(bool),
    /// Takes a step of some launch.
    Step(usize),
    Delete(usize),
    Fulfil,
    Fail,
    Attend,
    Pass(u64),
    Unreachable(usize),
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(Event::Launch),
        6 => any::<usize>().prop_map(Event::Step),
        3 => any::<usize>().prop_map(Event::Delete),
        2 => Just(Event::Fulfil),
        1 => Just(Event::Fail),
        4 => Just(Event::Attend),
        2 => (1_u64..400).prop_map(Event::Pass),
        1 => any::<usize>().prop_map(Event::Unreachable),
        1 => Just(Event::Restart),
    ]
}

struct Run {
    yard: Arc<Yard>,
    driver: MetastaticDriver,
    next: u64,
    launching: BTreeMap<NodeId, (&'static str, State)>,
    up: BTreeMap<NodeId, Placement>,
}

impl Run {
    fn new() -> Self {
        let yard = Yard::new();
        Self {
            driver: yard.driver(&section(KEYS), &Faults::none()),
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
                let own = OwnNode {
                    label: Some(Label::new(label)),
                    launching: true,
                    placement: None,
                };
                self.yard.change(|survey| survey.own.insert(id, own));
                self.launching.insert(id, (label, State::fresh()));
            }
            Event::Step(index) => {
                if let Some(id) = pick(&self.launching, index) {
                    self.step(id).await;
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
            Event::Attend => {
                self.driver.attend(self.yard.now()).await.unwrap();
            }
            Event::Pass(seconds) => self.yard.advance(Duration::from_secs(seconds)),
            Event::Unreachable(index) => {
                if let Some(id) = pick(&self.up, index) {
                    let external_id = id.to_string().as_str().into();
                    self.driver.unreachable(id, &external_id).await.unwrap();
                }
            }
            Event::Restart => {
                // A new launcher does not go on with the launches of the old one.
                self.driver = self.yard.driver(&section(KEYS), &Faults::none());
                for id in self.launching.keys().copied().collect::<Vec<_>>() {
                    self.delete(id).await;
                }
            }
        }
        self.check();
    }

    async fn step(&mut self, id: NodeId) {
        let (label, state) = self.launching.get_mut(&id).unwrap();
        let order = order(id, label);
        match self.driver.create(&order, state, self.yard.now()).await {
            Ok(Step::Done(instance)) => {
                let placement = Placement::read(&instance.driver_data).unwrap();
                self.launching.remove(&id);
                self.up.insert(id, placement);
                self.yard.change(|survey| {
                    let own = survey.own.get_mut(&id).unwrap();
                    own.launching = false;
                    own.placement = Some(placement);
                });
            }
            Ok(Step::Wait(_)) => {}
            Err(_) => self.delete(id).await,
        }
    }

    async fn delete(&mut self, id: NodeId) {
        let target = Target::Node {
            node: id,
            external_id: None,
        };
        let mut state = State::default();
        let step = self.driver.delete(&target, &mut state, self.yard.now());
        step.await.unwrap();
        self.yard.change(|survey| survey.own.remove(&id));
        self.launching.remove(&id);
        self.up.remove(&id);
    }

    fn check(&self) {
        let survey = self.yard.survey.borrow();
        let mut places: Vec<_> = self.up.values().map(|p| (p.backing_node, p.slot)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), self.up.len(), "a slot is given twice");
        for (id, placement) in &self.up {
            assert_eq!(survey.claim_of(*id), Some(*placement));
            assert!(placement.slot < 2);
        }
    }

    /// From here on everything works: all are served, and in the end nothing is left.
    async fn settle(mut self) {
        for _ in 0..50 {
            for id in self.launching.keys().copied().collect::<Vec<_>>() {
                self.step(id).await;
            }
            self.happen(Event::Attend).await;
            self.happen(Event::Fulfil).await;
        }
        assert_eq!(self.launching.len(), 0, "somebody waits for ever");
        for id in self.up.keys().copied().collect::<Vec<_>>() {
            self.delete(id).await;
        }
        self.happen(Event::Pass(3600)).await;
        self.happen(Event::Attend).await;
        let survey = self.yard.survey.borrow();
        assert_eq!((survey.asked.len(), survey.held.len()), (0, 0));
    }
}

fn pick<V>(map: &BTreeMap<NodeId, V>, index: usize) -> Option<NodeId> {
    map.keys().nth(index.checked_rem(map.len())?).copied()
}

proptest! {
    #[test]
    fn slots_are_given_once_and_everybody_gets_one(events in prop::collection::vec(event(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new();
            for event in events {
                run.happen(event).await;
            }
            run.settle().await;
        });
    }
}
