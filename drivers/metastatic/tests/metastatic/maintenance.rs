//! Which backing nodes are requested, kept and released.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_driver::backing::{BackingNode, Placement, SlotNode, SlotTable};
use nodeyard_driver::kit::{self, Faults};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, Machines as _, Progress, Target};
use nodeyard_driver_metastatic::MetastaticDriver;
use nodeyard_model::{Label, NodeId, NodeState, RequestId, RequestState};
use tokio::task::unconstrained;
use tokio::time::{Instant, advance};

use crate::yard::{Yard, node, owner, section};

/// An operation of the driver, which proceeds when it is polled.
pub(crate) type Operation<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

pub(crate) fn order(id: NodeId, label: &str) -> CreateOrder {
    CreateOrder {
        label: label.into(),
        ..kit::order(&owner(), id)
    }
}

pub(crate) fn create(driver: &Arc<MetastaticDriver>, order: CreateOrder) -> Operation<Instance> {
    let driver = Arc::clone(driver);
    Box::pin(unconstrained(async move {
        driver.create(&order, &Progress::default()).await
    }))
}

pub(crate) fn background(driver: &Arc<MetastaticDriver>) -> Operation<()> {
    let driver = Arc::clone(driver);
    Box::pin(unconstrained(async move { driver.run_background().await }))
}

/// A driver and its yard. Launches and background work proceed when a test polls them.
struct Bed {
    yard: Arc<Yard>,
    driver: Arc<MetastaticDriver>,
    background: RefCell<Operation<()>>,
}

struct Launch {
    id: NodeId,
    create: Operation<Instance>,
}

impl Bed {
    fn new(keys: &str) -> Self {
        let yard = Yard::new();
        let driver = Arc::new(yard.driver(&section(keys), &Faults::none()));
        Self {
            background: RefCell::new(background(&driver)),
            yard,
            driver,
        }
    }

    /// Adds the record of a node and begins its launch.
    fn launch(&self, number: u64, label: &str) -> (Launch, Option<Instance>) {
        let id = node(number);
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
        let mut launch = Launch { id, create };
        let instance = self.proceed(&mut launch);
        (launch, instance)
    }

    fn proceed(&self, launch: &mut Launch) -> Option<Instance> {
        let instance = launch.create.as_mut().now_or_never()?.unwrap();
        self.yard.change(|snapshot| {
            let record = snapshot.slot_nodes.get_mut(&launch.id).unwrap();
            record.launching = false;
            record.placement = Placement::read(&instance.driver_data);
        });
        Some(instance)
    }

    async fn delete(&self, id: NodeId) {
        let target = Target::Node {
            node: id,
            external_id: None,
        };
        self.driver.delete(&target).await.unwrap();
        self.yard.change(|snapshot| snapshot.slot_nodes.remove(&id));
    }

    /// Lets so much time pass, and a little more, since timers are not precise.
    async fn pass(&self, seconds: u64) {
        advance(Duration::from_secs(seconds) + Duration::from_millis(10)).await;
        let end = self.background.borrow_mut().as_mut().now_or_never();
        assert!(end.is_none(), "{end:?}");
    }

    fn requests(&self) -> usize {
        self.yard.snapshot.borrow().requests.len()
    }

    fn backing_nodes(&self) -> usize {
        self.yard.snapshot.borrow().backing_nodes.len()
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_backing_nodes_are_requested_as_the_slots_need() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let mut waiting = Vec::new();
    for (number, machines) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let (launch, instance) = bed.launch(number, "slot");
        assert_eq!(instance, None);
        assert_eq!(bed.requests(), machines, "for {number} nodes");
        waiting.push(launch);
    }
    // A backing node has slots of one label.
    let _other = bed.launch(6, "other");
    assert_eq!(bed.requests(), 4);
    bed.yard.fulfil();
    let mut slots = Vec::new();
    for launch in &mut waiting {
        let instance = bed.proceed(launch).unwrap();
        slots.push(instance.slot.unwrap());
        assert_eq!(instance.host_keys, ["ssh-rsa KEY".into()]);
    }
    assert_eq!(slots, [0, 1, 0, 1, 0]);
}

/// Launches a node of a request for two slots, and cancels that if it has to wait.
fn half_of(bed: &Bed, number: u64, request: u64) -> Option<Instance> {
    let request = format!("200-{request:010}").parse().unwrap();
    let id = node(number);
    let record = SlotNode {
        label: Some("slot".into()),
        request: Some(request),
        created: Some(bed.yard.now()),
        launching: true,
        placement: None,
    };
    bed.yard.change(|snapshot| {
        snapshot.slot_nodes.entry(id).or_insert(record);
    });
    let mut order = order(id, "slot");
    order.request.id = Some(request);
    order.request.labels = vec!["slot".into(); 2];
    order.first_attempt = false;
    let end = create(&bed.driver, order).now_or_never();
    end.map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn requests_for_several_slots_do_not_block_each_other() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let (mut busy, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    bed.proceed(&mut busy).unwrap();

    // One slot is free. No request gets it that would have to wait for another.
    assert_eq!(half_of(&bed, 2, 1), None);
    assert_eq!(half_of(&bed, 3, 2), None);
    bed.delete(busy.id).await;
    // The other node of the first request has no record yet; its slot is reserved.
    assert!(half_of(&bed, 2, 1).is_some());
    assert_eq!(half_of(&bed, 3, 2), None);
    assert!(half_of(&bed, 4, 1).is_some());
    for number in [2, 4] {
        bed.delete(node(number)).await;
        bed.pass(0).await;
    }
    assert!(half_of(&bed, 3, 2).is_some());
    assert!(half_of(&bed, 5, 2).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_large_request_is_not_overtaken_for_ever() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let (mut busy, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    bed.proceed(&mut busy).unwrap();
    assert_eq!(half_of(&bed, 2, 1), None);
    let small = |number: u64, request: &str| {
        let mut order = order(node(number), "slot");
        order.request.id = Some(request.parse().unwrap());
        order.request.labels = vec!["slot".into()];
        order.first_attempt = false;
        create(&bed.driver, order).now_or_never().is_some()
    };
    assert!(small(3, "200-0000000002"));
    bed.delete(node(3)).await;
    advance(Duration::from_secs(61)).await;
    assert!(
        !small(4, "200-0000000003"),
        "the large one has waited long enough"
    );
    assert!(small(5, "200-0000000000"), "it is older than the large one");
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_no_longer_needed_are_withdrawn() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (first, _) = bed.launch(1, "slot");
    let (second, _) = bed.launch(2, "slot");
    assert_eq!(bed.requests(), 2);
    bed.pass(0).await;
    assert_eq!(bed.requests(), 2);
    drop(first.create);
    bed.delete(first.id).await;
    bed.pass(0).await;
    assert_eq!(bed.requests(), 1);
    bed.yard.fulfil();
    drop(second.create);
    bed.delete(second.id).await;
    bed.pass(0).await;
    assert_eq!((bed.requests(), bed.backing_nodes()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn fulfilled_requests_are_withdrawn_last() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (first, _) = bed.launch(1, "slot");
    let (mut second, _) = bed.launch(2, "slot");
    bed.yard.fulfil_youngest();
    drop(first.create);
    bed.delete(first.id).await;
    bed.pass(0).await;
    assert_eq!((bed.requests(), bed.backing_nodes()), (0, 1));
    assert!(bed.proceed(&mut second).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_fails_the_launches_that_wait_for_it_and_no_others() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(bed.launch(number, "slot").0);
    }
    bed.yard.change(|snapshot| {
        let mut requests = snapshot.requests.values_mut();
        requests.next().unwrap().state = RequestState::Failed;
    });
    bed.pass(0).await;
    assert_eq!(
        bed.requests(),
        2,
        "launches that wait for it have not seen the failure"
    );
    for (index, launch) in waiting.iter_mut().enumerate() {
        let end = launch.create.as_mut().now_or_never();
        assert_eq!(end.is_some(), index < 2, "{end:?}");
        if let Some(end) = end {
            assert_eq!(end.unwrap_err().class(), ErrorClass::Capacity);
            bed.delete(launch.id).await;
        }
    }
    bed.pass(0).await;
    assert_eq!(bed.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_launch_wakes_up_when_something_happens() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (start, progress) = (Instant::now(), Progress::default());
    let order = order(node(1), "slot");
    let (instance, ()) = tokio::join!(bed.driver.create(&order, &progress), async {
        let stage = progress.stage().unwrap();
        assert!(
            stage.contains("waiting for a node with label small"),
            "{stage}"
        );
        bed.yard.fulfil();
    });
    instance.unwrap();
    assert_eq!(Instant::now(), start, "it waited for a timer");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_launch_is_continued_by_another_process() {
    let bed = Bed::new("max-parallel-jobs: 1");
    let (mut launch, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    let instance = bed.proceed(&mut launch).unwrap();
    let other = bed
        .yard
        .driver(&section("max-parallel-jobs: 1"), &Faults::none());
    let mut again = order(launch.id, "slot");
    again.first_attempt = false;
    let repeated = other.create(&again, &Progress::default()).await.unwrap();
    assert_eq!(repeated.driver_data, instance.driver_data);
}

/// A bed with one backing node, whose only slot was just freed.
async fn idle(keys: &str) -> Bed {
    let bed = Bed::new(keys);
    let (mut launch, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    bed.proceed(&mut launch).unwrap();
    bed.pass(1000).await;
    assert_eq!(bed.backing_nodes(), 1, "it is in use");
    bed.delete(launch.id).await;
    bed.pass(0).await;
    bed
}

#[tokio::test(start_paused = true)]
async fn an_idle_backing_node_is_kept_for_its_grace_time() {
    let bed = idle("grace-time: 30").await;
    bed.pass(10).await;
    bed.pass(19).await;
    assert_eq!(bed.backing_nodes(), 1);
    bed.pass(1).await;
    assert_eq!(bed.backing_nodes(), 0);
    assert_eq!(bed.yard.released().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_young_backing_node_is_kept_longer() {
    let bed = idle("grace-time: 30, min-retention-time: 1100").await;
    bed.pass(50).await;
    assert_eq!(bed.backing_nodes(), 1);
    bed.pass(50).await;
    assert_eq!(bed.backing_nodes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_old_backing_node_gets_no_more_nodes() {
    let bed = idle("max-parallel-jobs: 2, grace-time: 3600, max-age: 2000").await;
    let (launch, instance) = bed.launch(2, "slot");
    assert!(instance.is_some());
    bed.pass(1500).await;
    assert_eq!(bed.backing_nodes(), 1, "it is in use");
    let (_waiting, other) = bed.launch(3, "slot");
    assert_eq!((other, bed.requests()), (None, 1));
    bed.delete(launch.id).await;
    bed.pass(0).await;
    assert_eq!(bed.backing_nodes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_backing_node_gets_no_more_nodes() {
    let bed = Bed::new("max-parallel-jobs: 2, host-key-checking: true, grace-time: 3600");
    let (mut launch, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    let instance = bed.proceed(&mut launch).unwrap();
    assert!(instance.host_keys.is_empty(), "they are to be scanned");
    bed.driver
        .mark_unreachable(launch.id, &instance.external_id)
        .await
        .unwrap();
    let (_waiting, other) = bed.launch(2, "slot");
    assert_eq!((other, bed.requests()), (None, 1));
    bed.delete(launch.id).await;
    bed.pass(0).await;
    assert_eq!(bed.backing_nodes(), 0);
}

#[tokio::test(start_paused = true)]
async fn records_of_python_are_taken_over() {
    let bed = Bed::new("max-parallel-jobs: 2, grace-time: 60");
    let (mut launch, _) = bed.launch(1, "slot");
    bed.yard.fulfil();
    let instance = bed.proceed(&mut launch).unwrap();
    // Nodepool writes neither of these.
    bed.yard.change(|snapshot| {
        let backing = snapshot.backing_nodes.values_mut().next().unwrap();
        let table = backing.slots.as_mut().unwrap();
        table.nodes.clear();
        table.last_used = None;
    });
    bed.pass(1000).await;
    assert_eq!(bed.backing_nodes(), 1, "a record says that it is in use");
    let (second, other) = bed.launch(2, "slot");
    assert_ne!(other.unwrap().slot, instance.slot);
    bed.delete(second.id).await;
    bed.delete(node(1)).await;
    bed.pass(0).await;
    bed.pass(59).await;
    assert_eq!(bed.backing_nodes(), 1);
    bed.pass(1).await;
    assert_eq!(bed.backing_nodes(), 0);
}

#[tokio::test(start_paused = true)]
async fn backing_nodes_between_two_states_are_released() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let add = |number, state, accepted: bool| {
        bed.yard.change(|snapshot| {
            let mut record = nodeyard_model::Node::new(state, bed.yard.now());
            record.allocated_to = Some("100-0000000001".parse::<RequestId>().unwrap().into());
            let table = SlotTable {
                owner: "NodePool:metastatic:meta".to_owned(),
                label: "slot".into(),
                slots: 2,
                failed: false,
                launched: bed.yard.now(),
                last_used: None,
                nodes: Default::default(),
            };
            let backing = BackingNode {
                node: Arc::new(record),
                version: 0,
                slots: accepted.then_some(table),
            };
            snapshot.backing_nodes.insert(node(number), backing);
        });
    };
    // Locked, but its request is gone: the launcher that accepted it died.
    add(1, NodeState::Ready, false);
    // Its use has ended, but it is still locked.
    add(2, NodeState::Used, true);
    add(3, NodeState::InUse, true);
    bed.pass(0).await;
    assert_eq!(bed.yard.released(), [node(1), node(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_does_not_back_itself() {
    let bed = Bed::new("max-parallel-jobs: 2");
    let pool = "main".into();
    assert!(bed.driver.cost(&pool, &"slot".into()).await.is_ok());
    let mut other = section("max-parallel-jobs: 2");
    other.pools[0].labels[0].backing_label = other.pools[0].labels[1].name.clone();
    let driver = bed.yard.driver(&other, &Faults::none());
    let error = driver.cost(&pool, &"slot".into()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
}
