use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn core() -> Core {
    Core::new(Settings {
        coalesce: false,
        job_attempts: 2,
        strict_exceptions: false,
        max_jobs: 1000,
        max_job_bytes: 1 << 20,
        max_functions: 1000,
        wake_patience: Duration::from_secs(1),
        handle_prefix: "H:test:".to_owned(),
    })
}

fn connect(core: &mut Core, number: u64) -> ConnectionId {
    core.connect(ConnectionId(number), IpAddr::V4(Ipv4Addr::LOCALHOST), None);
    ConnectionId(number)
}

fn submit(function: &str, priority: Priority) -> Packet {
    Packet::SubmitJob {
        priority,
        background: true,
        function: Bytes::copy_from_slice(function.as_bytes()),
        unique: Bytes::new(),
        payload: Bytes::new(),
    }
}

fn can_do(function: &str) -> Packet {
    Packet::CanDo {
        function: Bytes::copy_from_slice(function.as_bytes()),
    }
}

/// Sends one packet and returns what the server says to whom.
fn say(core: &mut Core, from: ConnectionId, packet: Packet, now: Instant) -> Vec<(u64, Packet)> {
    core.packet(from, packet, now);
    drain(core)
}

fn drain(core: &mut Core) -> Vec<(u64, Packet)> {
    let packet = |(to, outgoing): (ConnectionId, Outgoing)| match outgoing {
        Outgoing::Packet(packet) => (to.0, packet),
        Outgoing::Text(text) => panic!("{text}"),
    };
    core.drain_deliveries().map(packet).collect()
}

#[test]
fn one_sleeper_is_woken_per_job() {
    let (mut core, now) = (core(), Instant::now());
    let client = connect(&mut core, 100);
    for number in 1..=3 {
        let worker = connect(&mut core, number);
        say(&mut core, worker, can_do("f"), now);
        assert_eq!(say(&mut core, worker, Packet::PreSleep, now), []);
    }
    let woken = |said: Vec<(u64, Packet)>| -> Vec<u64> {
        said.into_iter()
            .filter(|(_, packet)| *packet == Packet::Noop)
            .map(|(to, _)| to)
            .collect()
    };
    assert_eq!(
        woken(say(&mut core, client, submit("f", Priority::Normal), now)),
        [1]
    );
    assert_eq!(
        woken(say(&mut core, client, submit("f", Priority::Normal), now)),
        [2]
    );
    // The woken ones do not come: everybody else is asked.
    assert!(core.next_deadline().is_some());
    core.expire(now + Duration::from_secs(2));
    assert_eq!(woken(drain(&mut core)), [3]);
}

#[test]
fn a_woken_worker_that_leaves_or_takes_another_job_is_replaced() {
    let (mut core, now) = (core(), Instant::now());
    let client = connect(&mut core, 100);
    let workers = [1, 2, 3].map(|number| connect(&mut core, number));
    for worker in workers {
        say(&mut core, worker, can_do("f"), now);
        say(&mut core, worker, Packet::PreSleep, now);
    }
    say(&mut core, workers[0], can_do("urgent"), now);
    let said = say(&mut core, client, submit("f", Priority::Normal), now);
    assert!(said.contains(&(1, Packet::Noop)), "{said:?}");
    assert!(
        !say(&mut core, client, submit("urgent", Priority::High), now).contains(&(1, Packet::Noop))
    );
    let said = say(&mut core, workers[0], Packet::GrabJobUniq, now);
    assert!(
        matches!(
            &said[..],
            [(1, Packet::JobAssignUniq { .. }), (2, Packet::Noop)]
        ),
        "{said:?}"
    );
    core.disconnect(workers[1], now);
    assert_eq!(drain(&mut core), [(3, Packet::Noop)]);
}

#[test]
fn only_the_worker_of_a_job_is_heard() {
    let (mut core, now) = (core(), Instant::now());
    let (client, worker, thief) = (
        connect(&mut core, 1),
        connect(&mut core, 2),
        connect(&mut core, 3),
    );
    let mut request = submit("f", Priority::Normal);
    if let Packet::SubmitJob { background, .. } = &mut request {
        *background = false;
    }
    say(&mut core, client, request, now);
    say(&mut core, worker, can_do("f"), now);
    let said = say(&mut core, worker, Packet::GrabJob, now);
    let [(_, Packet::JobAssign { handle, .. })] = &said[..] else {
        panic!("{said:?}")
    };
    let complete = Packet::WorkComplete {
        handle: handle.clone(),
        data: Bytes::new(),
    };
    assert_eq!(say(&mut core, thief, complete.clone(), now), []);
    assert_eq!(
        say(&mut core, worker, complete.clone(), now),
        [(1, complete)]
    );
}

#[test]
fn idle_functions_make_room_for_new_ones() {
    let (mut core, now) = (core(), Instant::now());
    core.settings.max_functions = 2;
    let worker = connect(&mut core, 1);
    for function in ["a", "b"] {
        say(&mut core, worker, can_do(function), now);
    }
    let said = say(&mut core, worker, can_do("c"), now);
    assert!(matches!(&said[..], [(1, Packet::Error { .. })]), "{said:?}");
    say(
        &mut core,
        worker,
        Packet::CantDo {
            function: Bytes::from_static(b"a"),
        },
        now,
    );
    assert_eq!(say(&mut core, worker, can_do("c"), now), []);
    let names: Vec<_> = core
        .functions()
        .map(|function| function.name.clone())
        .collect();
    assert_eq!(names, [&b"c"[..], b"b"]);
}

#[test]
fn registering_for_ever_piles_up_nothing() {
    let (mut core, now) = (core(), Instant::now());
    let (client, worker) = (connect(&mut core, 1), connect(&mut core, 2));
    say(&mut core, client, submit("f", Priority::Normal), now);
    for _ in 0..10_000 {
        say(&mut core, worker, can_do("f"), now);
        say(
            &mut core,
            worker,
            Packet::CantDo {
                function: Bytes::from_static(b"f"),
            },
            now,
        );
    }
    assert!(core.connections[&worker].hints.len() < 100);
}

/// What a random mix of clients and workers does.
#[derive(Clone, Debug)]
enum Step {
    Submit(usize, Priority),
    CanDo(usize, usize),
    CantDo(usize, usize),
    Grab(usize),
    Sleep(usize),
    Complete(usize),
    Reconnect(usize),
    Cancel(usize),
    Wait,
}

const WORKERS: usize = 4;
const FUNCTIONS: usize = 5;

fn any_step() -> impl Strategy<Value = Step> {
    let priority = prop::sample::select(vec![Priority::High, Priority::Normal, Priority::Low]);
    prop_oneof![
        4 => (0..FUNCTIONS, priority).prop_map(|(f, p)| Step::Submit(f, p)),
        3 => (0..WORKERS, 0..FUNCTIONS).prop_map(|(w, f)| Step::CanDo(w, f)),
        1 => (0..WORKERS, 0..FUNCTIONS).prop_map(|(w, f)| Step::CantDo(w, f)),
        4 => (0..WORKERS).prop_map(Step::Grab),
        3 => (0..WORKERS).prop_map(Step::Sleep),
        3 => (0..WORKERS).prop_map(Step::Complete),
        1 => (0..WORKERS).prop_map(Step::Reconnect),
        1 => (0usize..20).prop_map(Step::Cancel),
        1 => Just(Step::Wait),
    ]
}

/// A job as the simple model sees it.
#[derive(Clone, Debug)]
struct ModelJob {
    key: Key,
    function: usize,
    attempts: u32,
}

/// A worker as the simple model sees it.
#[derive(Clone, Debug, Default)]
struct ModelWorker {
    connection: u64,
    able: Vec<usize>,
    running: Vec<ModelJob>,
    /// Asleep and not sent a NOOP since.
    asleep: bool,
}

proptest! {
    /// The server against a model that searches everything: each grab gets the oldest job of the highest priority
    /// that the worker can do, and no job waits beside a worker that sleeps through it.
    #[test]
    fn grabs_are_right_and_nobody_oversleeps(steps in vec(any_step(), 0..150)) {
        let mut now = Instant::now();
        let mut core = core();
        let client = connect(&mut core, 0);
        let mut waiting: Vec<ModelJob> = Vec::new();
        let mut handles: HashMap<Bytes, JobId> = HashMap::new();
        let mut connections = 0u64;
        let mut workers: Vec<ModelWorker> = (0..WORKERS).map(|_| {
            connections += 1;
            connect(&mut core, connections);
            ModelWorker { connection: connections, ..ModelWorker::default() }
        }).collect();
        let name = |function: usize| format!("f{function}");
        for step in steps {
            match step {
                Step::Submit(function, priority) => {
                    core.packet(client, submit(&name(function), priority), now);
                    waiting.push(ModelJob { key: (priority, core.last_job), function, attempts: 0 });
                }
                Step::CanDo(w, f) => {
                    core.packet(ConnectionId(workers[w].connection), can_do(&name(f)), now);
                    if !workers[w].able.contains(&f) {
                        workers[w].able.push(f);
                    }
                }
                Step::CantDo(w, f) => {
                    let function = name(f).into();
                    core.packet(ConnectionId(workers[w].connection), Packet::CantDo { function }, now);
                    workers[w].able.retain(|able| *able != f);
                }
                Step::Grab(w) => {
                    workers[w].asleep = false;
                    core.packet(ConnectionId(workers[w].connection), Packet::GrabJobUniq, now);
                }
                Step::Sleep(w) => {
                    workers[w].asleep = true;
                    core.packet(ConnectionId(workers[w].connection), Packet::PreSleep, now);
                }
                Step::Complete(w) => {
                    if let Some(job) = workers[w].running.pop() {
                        let handle = Bytes::from(format!("H:test:{}", job.key.1));
                        let packet = Packet::WorkComplete { handle, data: Bytes::new() };
                        core.packet(ConnectionId(workers[w].connection), packet, now);
                    }
                }
                Step::Reconnect(w) => {
                    core.disconnect(ConnectionId(workers[w].connection), now);
                    connections += 1;
                    connect(&mut core, connections);
                    let lost = std::mem::take(&mut workers[w]);
                    workers[w].connection = connections;
                    waiting.extend(lost.running.into_iter().filter(|job| job.attempts < 2));
                }
                Step::Cancel(index) => {
                    if index < waiting.len() {
                        let job = waiting.remove(index);
                        prop_assert!(core.cancel(job.key.1));
                    }
                }
                Step::Wait => {
                    now += Duration::from_secs(2);
                    core.expire(now);
                }
            }
            for (to, packet) in drain(&mut core) {
                let worker = workers.iter_mut().find(|worker| worker.connection == to);
                match (packet, worker) {
                    (Packet::JobCreated { handle }, None) => {
                        handles.insert(handle, core.last_job);
                    }
                    (Packet::Noop, Some(worker)) => worker.asleep = false,
                    (Packet::NoJob, Some(worker)) => {
                        prop_assert!(!waiting.iter().any(|job| worker.able.contains(&job.function)));
                    }
                    (Packet::JobAssignUniq { handle, .. }, Some(worker)) => {
                        let best = waiting.iter().filter(|job| worker.able.contains(&job.function)).map(|job| job.key).min();
                        let key = best.unwrap();
                        prop_assert_eq!(handles.get(&handle), Some(&key.1));
                        let index = waiting.iter().position(|job| job.key == key).unwrap();
                        let mut job = waiting.swap_remove(index);
                        job.attempts += 1;
                        worker.running.push(job);
                    }
                    (packet, worker) => prop_assert!(false, "{packet:?} to {worker:?}"),
                }
            }
            prop_assert_eq!(core.asleep, workers.iter().filter(|worker| worker.asleep).count());
            let total: usize = waiting.len() + workers.iter().map(|worker| worker.running.len()).sum::<usize>();
            prop_assert_eq!(core.jobs.len(), total);
        }
        // After the patience with woken workers is over, a sleeper has nothing it could do.
        core.expire(now + Duration::from_secs(2));
        for (to, packet) in drain(&mut core) {
            prop_assert_eq!(packet, Packet::Noop);
            workers.iter_mut().find(|worker| worker.connection == to).unwrap().asleep = false;
        }
        for worker in workers.iter().filter(|worker| worker.asleep) {
            let missed = waiting.iter().find(|job| worker.able.contains(&job.function));
            prop_assert!(missed.is_none(), "{worker:?} sleeps through {missed:?}");
        }
    }
}
