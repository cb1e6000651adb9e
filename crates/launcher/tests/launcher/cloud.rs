//! Launches in a simulated cloud.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{NodeId, NodeState, RequestState};
use nodeyard_store::registry::Registry;

use crate::bed::{Running, Store, eventually, locked_requests, logs, nodes, parse};
use crate::fake::{FakeCloud, config, simulate, with_second};
use crate::zuul::{Zuul, all_different};

pub(crate) const SMALL: &str = "  - name: small\n";

/// Neither records nor machines are left, nor locks.
pub(crate) async fn nothing_is_left(registry: &Registry, cloud: &FakeCloud) {
    eventually("nothing is left", || async {
        let nodes = nodes(registry).await;
        let unlocked = locked_requests(registry).await.is_empty();
        (nodes.is_empty() && unlocked && cloud.servers().await.is_empty()).then_some(())
    })
    .await;
}

async fn a_node_is_launched_used_and_deleted(store: Store) {
    logs();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small", "small"]).await;
    let mut nodeset = zuul.accept(id).await;
    assert_eq!(cloud.servers().await.len(), 2);
    for (id, held) in &nodeset.nodes {
        let node = &held.value;
        assert_eq!(node.username.as_deref(), Some("debian"));
        assert_eq!(node.python_path.as_deref(), Some("auto"));
        assert_eq!(node.host_keys, ["ssh-rsa FAKEKEY".into()]);
        assert_eq!(node.image_id.as_deref(), Some("trixie"));
        assert!(node.interface_ip.is_some() && node.resources.is_some() && node.az.is_some());
        assert!(
            node.launcher
                .as_ref()
                .unwrap()
                .as_str()
                .contains("PoolWorker.fake-cloud-main-")
        );
        assert!(cloud.servers().await.contains(&format!("np{id}")));
    }
    zuul.set_state(&mut nodeset, NodeState::InUse).await;
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_launched_used_and_deleted_embedded() {
    a_node_is_launched_used_and_deleted(Store::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_launched_used_and_deleted_zookeeper() {
    a_node_is_launched_used_and_deleted(Store::zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_never_exceeds_the_limits() {
    logs();
    let store = Store::embedded();
    // The cloud would take four, the pool three.
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(3, SMALL)).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    let jobs = (0..12).map(|number| {
        let zuul = Arc::clone(&zuul);
        tokio::spawn(async move {
            let labels: &[&str] = if number % 3 == 0 {
                &["small", "small"]
            } else {
                &["small"]
            };
            let id = zuul.submit(labels).await;
            zuul.run_job(id).await;
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await.unwrap();
    }
    assert!(cloud.peak() <= 3, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

/// The cloud refuses what exceeds its quota, and each refusal would be one more call.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_never_exceeds_the_limits_on_volumes() {
    logs();
    let from_volume = "            boot-from-volume: true\n            volume-size: 40\n";
    let (jobs, most) = (8, 2);
    for (volumes, volume_gb, limit) in [
        (100, 1_000, "max-volumes: 2"),
        (100, 1_000, "max-volume-gb: 100"),
        (2, 1_000, ""),
        (100, 100, ""),
    ] {
        let store = Store::embedded();
        let mut options = simulate();
        (options.quota.volumes, options.quota.volume_gb) = (volumes, volume_gb);
        let cloud = FakeCloud::new(options);
        let text = config(4, SMALL).replace(
            "max-servers: 4",
            &format!("max-servers: 4\n        {limit}"),
        );
        let text = format!("{text}{from_volume}");
        let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
        let zuul = Arc::new(Zuul::new(store.session().await));
        let jobs_run = (0..jobs).map(|_| {
            let zuul = Arc::clone(&zuul);
            tokio::spawn(async move {
                let id = zuul.submit(&["small"]).await;
                zuul.run_job(id).await;
            })
        });
        for job in jobs_run.collect::<Vec<_>>() {
            job.await.unwrap();
        }
        assert!(cloud.peak() <= most, "{} servers at once", cloud.peak());
        assert_eq!(cloud.creates(), jobs, "{volumes} {volume_gb} {limit}");
        nothing_is_left(&zuul.registry, &cloud).await;
        launcher.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_launchers_share_requests_and_limits() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let one = Running::start(&store, Arc::clone(&cloud) as _, &config(3, SMALL)).await;
    let two = Running::start(&store, Arc::clone(&cloud) as _, &config(3, SMALL)).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    let jobs = (0..20).map(|_| {
        let zuul = Arc::clone(&zuul);
        tokio::spawn(async move {
            let id = zuul.submit(&["small"]).await;
            zuul.run_job(id).await
        })
    });
    let mut used = Vec::new();
    for job in jobs.collect::<Vec<_>>() {
        used.extend(job.await.unwrap());
    }
    all_different(used, 20);
    assert!(cloud.peak() <= 3, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_machine_is_stored_while_it_boots() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.hold_boots(true);
    let id = zuul.submit(&["small"]).await;
    eventually("the record has the id", || async {
        let nodes = nodes(&zuul.registry).await;
        let node = &nodes.first()?.1;
        (node.state == NodeState::Building && !node.external_id.is_null()).then_some(())
    })
    .await;
    cloud.hold_boots(false);
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_launch_is_tried_again_and_then_declined() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let zuul = Zuul::new(store.session().await);

    // Two attempts are allowed, and an answer that says no ends an attempt.
    cloud.refuse(&["the cloud is upset"; 1]);
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    assert_eq!(cloud.creates(), 2);

    cloud.refuse(&["the cloud is upset"; 2]);
    let id = zuul.submit(&["small"]).await;
    let done = zuul.done(id).await;
    assert_eq!(done.state, RequestState::Failed, "{done:?}");
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_launch_fails_no_request_that_a_pool_to_come_may_serve() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = config(4, SMALL);
    let mut launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    assert!(launcher.handle.until_ready().await);
    let zuul = Zuul::new(store.session().await);

    // Another provider starts, and takes its time.
    cloud.hold_limits(true);
    let both = parse(&with_second(&text, "second-cloud"));
    launcher.config.send(both).unwrap();
    cloud.refuse(&["the cloud is upset"; 2]);
    let id = zuul.submit(&["small"]).await;
    cloud.created(2).await;
    eventually("the launch has failed, and is cleaned up after", || async {
        nodes(&zuul.registry).await.is_empty().then_some(())
    })
    .await;
    cloud.hold_limits(false);
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_others_use_up_only_delays() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.refuse(&["Quota exceeded for instances"; 1000]);
    let id = zuul.submit(&["small", "small"]).await;
    let is_paused = async |paused| {
        eventually("the pool says so", || async {
            let pools = zuul.registry.components().pools().await.unwrap();
            (pools.first()?.paused == paused).then_some(())
        })
        .await;
    };
    is_paused(true).await;
    cloud.relent();
    zuul.run_job(id).await;
    is_paused(false).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_quota_is_believed_although_the_cloud_cannot_be_listed() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let mut launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(8, SMALL)).await;
    assert!(launcher.handle.until_ready().await);
    let zuul = Zuul::new(store.session().await);
    cloud.fail_lists(true);
    cloud.lower_quota(1);
    // The cloud is polled before a request is declined for its size.
    let id = zuul.submit(&["small"; 5]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    eventually("the reason names the new quota", || async {
        let why = launcher.handle.ended(id)?.to_string();
        why.contains("allows 1 in all").then_some(())
    })
    .await;
    cloud.fail_lists(false);
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_request_does_not_overtake_one_that_the_cloud_refused() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.refuse(&["Quota exceeded for instances"; 1000]);
    let first = zuul.submit(&["small"]).await;
    eventually("the pool is paused", || async {
        let pools = zuul.registry.components().pools().await.unwrap();
        pools.first()?.paused.then_some(())
    })
    .await;
    let mut newer = Vec::new();
    for _ in 0..3 {
        newer.push(zuul.submit(&["small"]).await);
    }
    cloud.created(3).await;
    for id in &newer {
        let record = zuul.registry.requests().get(*id).await.unwrap().unwrap();
        assert_eq!(record.value.state, RequestState::Requested);
    }
    cloud.relent();
    let first = zuul.run_job(first).await;
    for id in newer {
        assert!(zuul.run_job(id).await > first, "it was launched later");
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_leaves_nothing_behind() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(nodeyard_driver_fake::Simulate {
        boot_time: nodeyard_driver_fake::Span::exactly(Duration::from_secs(3600)),
        ..simulate()
    });
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    let booting = zuul.submit(&["small"]).await;
    eventually("the machine boots", || async {
        (!cloud.servers().await.is_empty()).then_some(())
    })
    .await;
    let waiting = zuul.submit(&["small"]).await;
    let is_pending = |id| {
        let registry = &zuul.registry;
        async move {
            let request = registry.requests().get(id).await.unwrap().unwrap();
            (request.value.state == RequestState::Pending).then_some(())
        }
    };
    eventually("the second waits for room", || is_pending(waiting)).await;
    for id in [waiting, booting] {
        assert!(zuul.registry.requests().delete(id).await.unwrap());
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

/// Nodes are replaced one for one, however many launchers look after them: the numbers that the store has given to
/// nodes tell how many there ever were.
async fn nodes_are_kept_ready(store: Store, launchers: usize) {
    logs();
    let cloud = FakeCloud::new(simulate());
    let labels = "  - name: small\n    min-ready: 2\n";
    let mut running = Vec::new();
    for _ in 0..launchers {
        let drivers = Arc::clone(&cloud) as _;
        running.push(Running::start(&store, drivers, &config(9, labels)).await);
    }
    let zuul = Zuul::new(store.session().await);
    let two_ready = || async {
        let nodes = nodes(&zuul.registry).await;
        let free = nodes
            .iter()
            .filter(|(_, node)| node.state == NodeState::Ready && node.allocated_to.is_none());
        let requests = zuul.registry.requests().list().await.unwrap();
        (free.count() == 2 && nodes.len() == 2 && requests.is_empty()).then_some(nodes)
    };
    let mut ready = eventually("two nodes are ready", two_ready).await;
    let first = ready[0].0;
    for used_before in 0..3 {
        let newest = ready.iter().map(|(id, _)| *id).max().unwrap();
        let number = |id: NodeId| id.to_string().parse::<u64>().unwrap();
        let made = number(newest) - number(first) + 1;
        assert_eq!(made, 2 + used_before, "more were made than needed");
        let id = zuul.submit(&["small"]).await;
        let used = zuul.run_job(id).await;
        let was_ready = ready.iter().any(|(id, _)| *id == used[0]);
        assert!(was_ready, "a ready node is used");
        zuul.gone(used[0]).await;
        ready = eventually("two nodes are ready again", two_ready).await;
    }
    for launcher in running {
        launcher.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_kept_ready_by_one_launcher() {
    nodes_are_kept_ready(Store::embedded(), 1).await;
    nodes_are_kept_ready(Store::zookeeper().await, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_kept_ready_by_several_launchers_together() {
    nodes_are_kept_ready(Store::embedded(), 3).await;
    nodes_are_kept_ready(Store::zookeeper().await, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_driver_does_not_survive_is_tried_again() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    cloud.panic_in(&["get_compute_limits"]);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    for method in [
        "create_server",
        "get_server",
        "delete_server",
        "list_images",
    ] {
        cloud.panic_in(&[method]);
        let id = zuul.submit(&["small"]).await;
        zuul.run_job(id).await;
        nothing_is_left(&zuul.registry, &cloud).await;
        eventually("the driver has panicked", || async {
            cloud.has_panicked().then_some(())
        })
        .await;
    }
    cloud.listed_times(2).await;
    launcher.stop().await;
}
