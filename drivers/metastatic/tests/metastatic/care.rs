//! Which machines are asked for, kept, and given back.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::backing::{HeldNode, OwnNode, Placement};
use nodeyard_driver::kit::Faults;
use nodeyard_driver::{CreateOrder, Driver, ErrorClass, Instance, State, Step, Target, kit};
use nodeyard_driver_metastatic::MetastaticDriver;
use nodeyard_model::{Label, NodeId, NodeState, RequestId, RequestState};

use crate::yard::{Yard, node, owner, section};

pub(crate) fn order(id: NodeId, label: &str) -> CreateOrder {
    CreateOrder {
        label: label.into(),
        ..kit::order(&owner(), id)
    }
}

/// A driver, its yard, and launches that go on.
struct Bed {
    yard: Arc<Yard>,
    driver: MetastaticDriver,
}

impl Bed {
    fn new(keys: &str) -> Self {
        let yard = Yard::new();
        let driver = yard.driver(&section(keys), &Faults::none());
        Self { yard, driver }
    }

    /// Records a node and takes the first step of its launch.
    async fn launch(&self, number: u64, label: &str) -> (NodeId, State, Option<Instance>) {
        let id = node(number);
        let own = OwnNode {
            label: Some(Label::new(label)),
            request: None,
            since: None,
            launching: true,
            placement: None,
        };
        self.yard.change(|survey| survey.own.insert(id, own));
        let mut state = State::fresh();
        let instance = self.step(id, label, &mut state).await;
        (id, state, instance)
    }

    async fn step(&self, id: NodeId, label: &str, state: &mut State) -> Option<Instance> {
        let order = order(id, label);
        match self
            .driver
            .create(&order, state, self.yard.now())
            .await
            .unwrap()
        {
            Step::Done(instance) => {
                self.yard.change(|survey| {
                    let own = survey.own.get_mut(&id).unwrap();
                    own.launching = false;
                    own.placement = Placement::read(&instance.driver_data);
                });
                Some(instance)
            }
            Step::Wait(_) => None,
        }
    }

    async fn delete(&self, id: NodeId) {
        let target = Target::Node {
            node: id,
            external_id: None,
        };
        let mut state = State::default();
        let step = self.driver.delete(&target, &mut state, self.yard.now());
        assert_eq!(step.await.unwrap(), Step::Done(()));
        self.yard.change(|survey| survey.own.remove(&id));
    }

    /// Lets time pass, and the driver see to its machines.
    async fn pass(&self, seconds: u64) -> Duration {
        self.yard.advance(Duration::from_secs(seconds));
        self.driver
            .attend(self.yard.now())
            .await
            .unwrap()
            .unwrap()
            .at_most
    }

    fn asked(&self) -> usize {
        self.yard.survey.borrow().asked.len()
    }

    fn held(&self) -> usize {
        self.yard.survey.borrow().held.len()
    }
}

#[tokio::test]
async fn as_many_machines_are_asked_for_as_the_slots_need() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let mut waiting = Vec::new();
    for (number, machines) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let (id, state, instance) = bed.launch(number, "slot").await;
        assert_eq!(instance, None);
        assert_eq!(bed.asked(), machines, "for {number} nodes");
        waiting.push((id, state));
    }
    // A node carries slots of one label.
    let (_, _, _) = bed.launch(6, "other").await;
    assert_eq!(bed.asked(), 4);
    bed.yard.fulfil();
    let mut slots = Vec::new();
    for (id, state) in &mut waiting {
        let instance = bed.step(*id, "slot", state).await.unwrap();
        slots.push(instance.slot.unwrap());
        assert_eq!(instance.host_keys, ["ssh-rsa KEY".into()]);
    }
    assert_eq!(slots, [0, 1, 0, 1, 0]);
}

/// A node of a request for two slots.
async fn half_of(bed: &Bed, number: u64, request: u64) -> Option<Instance> {
    let request = format!("200-{request:010}").parse().unwrap();
    let id = node(number);
    let own = OwnNode {
        label: Some("slot".into()),
        request: Some(request),
        since: Some(bed.yard.now()),
        launching: true,
        placement: None,
    };
    bed.yard.change(|survey| {
        survey.own.entry(id).or_insert(own);
    });
    let mut order = order(id, "slot");
    order.request.id = Some(request);
    order.request.labels = vec!["slot".into(); 2];
    let mut state = State::default();
    match bed
        .driver
        .create(&order, &mut state, bed.yard.now())
        .await
        .unwrap()
    {
        Step::Done(instance) => Some(instance),
        Step::Wait(_) => None,
    }
}

#[tokio::test]
async fn requests_for_several_slots_do_not_block_each_other() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let (busy, mut state, _) = bed.launch(1, "slot").await;
    bed.yard.fulfil();
    bed.step(busy, "slot", &mut state).await.unwrap();

    // One slot is free. Nobody takes it who then had to wait for the other.
    assert_eq!(half_of(&bed, 2, 1).await, None);
    assert_eq!(half_of(&bed, 3, 2).await, None);
    bed.delete(busy).await;
    // The other node of the first request has no record yet; its slot is kept for it.
    assert!(half_of(&bed, 2, 1).await.is_some());
    assert_eq!(half_of(&bed, 3, 2).await, None);
    assert!(half_of(&bed, 4, 1).await.is_some());
    for number in [2, 4] {
        bed.delete(node(number)).await;
        bed.pass(0).await;
    }
    assert!(half_of(&bed, 3, 2).await.is_some());
    assert!(half_of(&bed, 5, 2).await.is_some());
}

#[tokio::test]
async fn a_large_request_is_not_passed_for_ever() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let (busy, mut state, _) = bed.launch(1, "slot").await;
    bed.yard.fulfil();
    bed.step(busy, "slot", &mut state).await.unwrap();
    assert_eq!(half_of(&bed, 2, 1).await, None);
    let small = |number: u64, request: &str| {
        let mut order = order(node(number), "slot");
        order.request.id = Some(request.parse().unwrap());
        order.request.labels = vec!["slot".into()];
        let bed = &bed;
        async move {
            let mut state = State::default();
            let step = bed.driver.create(&order, &mut state, bed.yard.now()).await;
            matches!(step.unwrap(), Step::Done(_))
        }
    };
    assert!(small(3, "200-0000000002").await);
    bed.delete(node(3)).await;
    bed.yard.advance(Duration::from_secs(61));
    assert!(
        !small(4, "200-0000000003").await,
        "the large one has waited long enough"
    );
    assert!(
        small(5, "200-0000000000").await,
        "it does not stand behind the large one"
    );
}

#[tokio::test]
async fn what_nobody_waits_for_is_withdrawn() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (first, _, _) = bed.launch(1, "slot").await;
    bed.launch(2, "slot").await;
    assert_eq!(bed.asked(), 2);
    bed.pass(0).await;
    assert_eq!(bed.asked(), 2);
    bed.delete(first).await;
    bed.pass(0).await;
    assert_eq!(bed.asked(), 1);
    bed.yard.fulfil();
    bed.delete(node(2)).await;
    bed.pass(0).await;
    assert_eq!((bed.asked(), bed.held()), (0, 0));
}

#[tokio::test]
async fn a_request_that_is_served_is_not_the_one_to_go() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (first, _, _) = bed.launch(1, "slot").await;
    let (_, mut state, _) = bed.launch(2, "slot").await;
    bed.yard.fulfil_youngest();
    bed.delete(first).await;
    bed.pass(0).await;
    assert_eq!((bed.asked(), bed.held()), (0, 1));
    assert!(bed.step(node(2), "slot", &mut state).await.is_some());
}

#[tokio::test]
async fn a_failed_request_fails_those_who_counted_on_it_and_nobody_else() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let mut waiting = Vec::new();
    for number in 1..=3 {
        let (id, state, _) = bed.launch(number, "slot").await;
        waiting.push((id, state));
    }
    bed.yard.change(|survey| {
        let mut asked = survey.asked.values_mut();
        asked.next().unwrap().state = RequestState::Failed;
    });
    bed.pass(0).await;
    assert_eq!(
        bed.asked(),
        2,
        "those who counted on it have not heard of it yet"
    );
    for (index, (id, state)) in waiting.iter_mut().enumerate() {
        let order = order(*id, "slot");
        let result = bed.driver.create(&order, state, bed.yard.now()).await;
        match result {
            Err(error) => {
                assert!(index < 2, "{error}");
                assert_eq!(error.class(), ErrorClass::Capacity);
                bed.delete(*id).await;
            }
            Ok(step) => assert!(index == 2 && matches!(step, Step::Wait(_)), "{step:?}"),
        }
    }
    bed.pass(0).await;
    assert_eq!(bed.asked(), 1);
}

#[tokio::test]
async fn a_launch_wakes_up_when_something_happens() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (id, mut state, _) = bed.launch(1, "slot").await;
    let order = order(id, "slot");
    let step = bed.driver.create(&order, &mut state, bed.yard.now()).await;
    let Step::Wait(wait) = step.unwrap() else {
        panic!("there is no machine")
    };
    let progress = bed.driver.progress(id).unwrap();
    assert!(
        progress.contains("waits for a node with label small"),
        "{progress}"
    );
    let event = wait.event.unwrap();
    let ((), ()) = tokio::join!(bed.driver.event(&event), async { bed.yard.fulfil() });
    // What has happened before somebody waited for it is not missed.
    bed.driver.event(&event).await;
    assert!(bed.step(id, "slot", &mut state).await.is_some());
    assert_eq!(bed.driver.progress(id), None);
}

/// A bed with one machine, whose only slot was just given back.
async fn idle(keys: &str) -> Bed {
    let bed = Bed::new(keys);
    let (id, mut state, _) = bed.launch(1, "slot").await;
    bed.yard.fulfil();
    bed.step(id, "slot", &mut state).await.unwrap();
    bed.pass(1000).await;
    assert_eq!(bed.held(), 1, "it is in use");
    bed.delete(id).await;
    bed
}

#[tokio::test]
async fn an_idle_machine_is_kept_for_its_grace_time() {
    let bed = idle("grace-time: 30").await;
    let wait = bed.pass(10).await;
    assert!(
        wait > Duration::from_secs(20) && wait < Duration::from_secs(21),
        "{wait:?}"
    );
    assert_eq!(bed.held(), 1);
    bed.pass(20).await;
    assert_eq!(bed.held(), 0);
    assert_eq!(bed.yard.given_back().len(), 1);
}

#[tokio::test]
async fn a_young_machine_is_kept_longer() {
    let bed = idle("grace-time: 30, min-retention-time: 1100").await;
    bed.pass(50).await;
    assert_eq!(bed.held(), 1);
    bed.pass(50).await;
    assert_eq!(bed.held(), 0);
}

#[tokio::test]
async fn an_old_machine_gets_no_more_nodes() {
    let bed = idle("max-parallel-jobs: 2, grace-time: 3600, max-age: 2000").await;
    let (id, _, instance) = bed.launch(2, "slot").await;
    assert!(instance.is_some());
    bed.pass(1500).await;
    assert_eq!(bed.held(), 1, "somebody is on it");
    assert_eq!(bed.launch(3, "slot").await.2, None);
    assert_eq!(bed.asked(), 1);
    bed.delete(id).await;
    bed.pass(0).await;
    assert_eq!(bed.held(), 0);
}

#[tokio::test]
async fn a_machine_that_does_not_answer_is_given_up() {
    let bed = Bed::new("max-parallel-jobs: 2, host-key-checking: true, grace-time: 3600");
    let (id, mut state, _) = bed.launch(1, "slot").await;
    bed.yard.fulfil();
    let instance = bed.step(id, "slot", &mut state).await.unwrap();
    assert!(instance.host_keys.is_empty(), "they are to be looked at");
    bed.driver
        .unreachable(id, &instance.external_id)
        .await
        .unwrap();
    assert_eq!(bed.launch(2, "slot").await.2, None);
    assert_eq!(bed.asked(), 1);
    bed.delete(id).await;
    bed.pass(0).await;
    assert_eq!(bed.held(), 0);
}

#[tokio::test]
async fn what_python_left_is_taken_over() {
    let bed = Bed::new("max-parallel-jobs: 2, grace-time: 60");
    let (_, mut state, _) = bed.launch(1, "slot").await;
    bed.yard.fulfil();
    let instance = bed.step(node(1), "slot", &mut state).await.unwrap();
    // Nodepool writes neither of these.
    bed.yard.change(|survey| {
        let note = survey
            .held
            .values_mut()
            .next()
            .unwrap()
            .note
            .as_mut()
            .unwrap();
        note.nodes.clear();
        note.last_used = None;
    });
    bed.pass(1000).await;
    assert_eq!(bed.held(), 1, "a record says that it is in use");
    let (second, _, other) = bed.launch(2, "slot").await;
    assert_ne!(other.unwrap().slot, instance.slot);
    bed.delete(second).await;
    bed.delete(node(1)).await;
    bed.pass(59).await;
    assert_eq!(bed.held(), 1);
    bed.pass(1).await;
    assert_eq!(bed.held(), 0);
}

#[tokio::test]
async fn machines_in_between_are_given_back() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let machine = |number, state, noted: bool| {
        bed.yard.change(|survey| {
            let mut record = nodeyard_model::Node::new(state, bed.yard.now());
            record.allocated_to = Some("100-0000000001".parse::<RequestId>().unwrap().into());
            let note = nodeyard_driver::backing::Note {
                owner: "NodePool:metastatic:meta".to_owned(),
                label: "slot".into(),
                slots: 2,
                failed: false,
                launched: bed.yard.now(),
                last_used: None,
                nodes: Default::default(),
            };
            let held = HeldNode {
                node: Arc::new(record),
                version: 0,
                note: noted.then_some(note),
            };
            survey.held.insert(node(number), held);
        });
    };
    // Locked, but its request is gone: whoever wanted to take it has died.
    machine(1, NodeState::Ready, false);
    // Its use was ended, but its lock not given up.
    machine(2, NodeState::Used, true);
    machine(3, NodeState::InUse, true);
    bed.pass(0).await;
    assert_eq!(bed.yard.given_back(), [node(1), node(2)]);
}

#[tokio::test]
async fn a_provider_does_not_stand_on_itself() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let pool = "main".into();
    assert!(bed.driver.cost(&pool, &"slot".into()).await.is_ok());
    let mut other = section("max-parallel-jobs: 2");
    other.pools[0].labels[0].backing_label = other.pools[0].labels[1].name.clone();
    let driver = bed.yard.driver(&other, &Faults::none());
    let error = driver.cost(&pool, &"slot".into()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
}
