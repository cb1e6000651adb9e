//! A cloud that refuses launches for lack of quota although there seems to be room.

use crate::common::{Launcher, ask, limits, pool_key, setup};
use nodeyard_model::{NodeId, RequestId};
use nodeyard_plan::Policy;
use nodeyard_plan::assign::DecisionInputs;

fn launcher() -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", limits(&[]), None);
    let pool = setup("cloud", "main", &["small"], limits(&[("instances", 100)]));
    launcher.pool(pool, 10);
    launcher
}

fn submit(launcher: &mut Launcher, precedence: u16, labels: &[&str]) -> RequestId {
    let record = ask(labels, launcher.now);
    launcher.submit(precedence, record)
}

fn work(launcher: &mut Launcher) {
    launcher.decide();
    launcher.carry_out_all();
    launcher.clean();
    launcher.check();
}

/// The requests for which machines are being made.
fn launching(launcher: &Launcher) -> Vec<RequestId> {
    let building = launcher.building().into_iter();
    let requests = building.map(|node| launcher.nodes[&node].request().unwrap());
    requests.collect()
}

fn refuse_all(launcher: &mut Launcher) {
    for node in launcher.building() {
        launcher.fail_launch(node, true);
    }
    work(launcher);
}

fn finish_all(launcher: &mut Launcher) {
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
    work(launcher);
}

#[test]
fn a_newer_request_does_not_overtake_one_that_the_cloud_refused() {
    let mut launcher = launcher();
    let first = submit(&mut launcher, 200, &["small"]);
    work(&mut launcher);
    refuse_all(&mut launcher);
    let [second, third] = [(); 2].map(|()| submit(&mut launcher, 200, &["small"]));
    work(&mut launcher);
    assert_eq!(launching(&launcher), []);
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    let why = launcher.scheduler.explain(third, at).unwrap().to_string();
    let verdict = "cloud/main: cannot serve it yet: the cloud refuses launches for lack of quota, the next attempt is in 1 s";
    assert!(why.contains(verdict), "{why}");

    for pause in [1.0, 2.0, 4.0] {
        launcher.advance(pause - 0.1);
        work(&mut launcher);
        assert_eq!(launching(&launcher), []);
        launcher.advance(0.1);
        work(&mut launcher);
        assert_eq!(launching(&launcher), [first]);
        refuse_all(&mut launcher);
    }
    launcher.advance(8.0);
    work(&mut launcher);
    assert_eq!(launching(&launcher), [first]);
    finish_all(&mut launcher);
    assert_eq!(launching(&launcher), [second, third]);
}

#[test]
fn an_urgent_request_probes_the_cloud_first() {
    let mut launcher = launcher();
    submit(&mut launcher, 200, &["small"]);
    work(&mut launcher);
    refuse_all(&mut launcher);
    let urgent = submit(&mut launcher, 100, &["small"]);
    work(&mut launcher);
    launcher.advance(1.0);
    work(&mut launcher);
    assert_eq!(launching(&launcher), [urgent]);
}

#[test]
fn the_calls_to_a_full_cloud_do_not_grow_with_the_requests_that_wait() {
    let mut launcher = launcher();
    submit(&mut launcher, 200, &["small"]);
    work(&mut launcher);
    refuse_all(&mut launcher);
    for _ in 0..50 {
        submit(&mut launcher, 200, &["small"]);
    }
    let mut calls = 0;
    for _ in 0..65 {
        work(&mut launcher);
        calls += launcher.building().len();
        refuse_all(&mut launcher);
        launcher.advance(1.0);
    }
    // After 1, 3, 7, 15, 25, 35, 45 and 55 s.
    assert_eq!(calls, 8);
    // Then it has room, and all are served within a few rounds.
    launcher.advance(10.0);
    for _ in 0..7 {
        work(&mut launcher);
        finish_all(&mut launcher);
    }
    assert_eq!(launcher.fulfilled().len(), 51);
}

#[test]
fn requests_that_got_a_part_of_their_nodes_do_not_wait_for_each_other() {
    let mut launcher = launcher();
    let [first, second] = [(); 2].map(|()| submit(&mut launcher, 200, &["small", "small"]));
    work(&mut launcher);
    let building: Vec<NodeId> = launcher.building();
    for half in building.chunks(2) {
        launcher.finish_launch(half[0]);
        launcher.fail_launch(half[1], true);
    }
    work(&mut launcher);
    assert_eq!(launcher.fulfilled(), [first]);
    launcher.use_and_return(first);
    launcher.advance(1.0);
    work(&mut launcher);
    assert_eq!(launching(&launcher), [second, second]);
}

#[test]
fn an_idle_pool_is_open_after_the_pause() {
    let mut launcher = launcher();
    let only = submit(&mut launcher, 200, &["small"]);
    work(&mut launcher);
    refuse_all(&mut launcher);
    launcher.cancel(only);
    let mut is_paused = |seconds| {
        launcher.advance(seconds);
        let at = DecisionInputs {
            now: launcher.now,
            seed: 0,
        };
        launcher
            .scheduler
            .assign(&pool_key("cloud", "main"), at)
            .paused
    };
    assert!(is_paused(0.5));
    assert!(!is_paused(0.5));
}
