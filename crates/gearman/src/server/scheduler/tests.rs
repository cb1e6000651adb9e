use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn scheduler() -> Scheduler {
    Scheduler::new(SchedulerOptions {
        coalesce: false,
        job_attempts: 2,
        strict_exceptions: false,
        max_jobs: 1000,
        max_job_bytes: 1 << 20,
        max_functions: 1000,
        wake_timeout: Duration::from_secs(1),
        handle_prefix: "H:test:".to_owned(),
    })
}

fn connect(scheduler: &mut Scheduler, number: u64) -> ConnectionId {
    scheduler.connect(ConnectionId(number), IpAddr::V4(Ipv4Addr::LOCALHOST), None);
    ConnectionId(number)
}

fn submit(function: &str, priority: JobPriority) -> Packet {
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

/// Handles one packet and returns the packets to send, with their receivers.
fn handle_packet(
    scheduler: &mut Scheduler,
    from: ConnectionId,
    packet: Packet,
    now: Instant,
) -> Vec<(u64, Packet)> {
    scheduler.handle_packet(from, packet, now);
    drain(scheduler)
}

fn drain(scheduler: &mut Scheduler) -> Vec<(u64, Packet)> {
    let packet = |(to, outgoing): (ConnectionId, OutgoingMessage)| match outgoing {
        OutgoingMessage::Packet(packet) => (to.0, packet),
        OutgoingMessage::Text(text) => panic!("{text}"),
    };
    scheduler.drain_deliveries().map(packet).collect()
}

#[test]
fn one_sleeping_worker_is_woken_per_job() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let client = connect(&mut scheduler, 100);
    for number in 1..=3 {
        let worker = connect(&mut scheduler, number);
        handle_packet(&mut scheduler, worker, can_do("f"), now);
        assert_eq!(
            handle_packet(&mut scheduler, worker, Packet::PreSleep, now),
            []
        );
    }
    let woken = |said: Vec<(u64, Packet)>| -> Vec<u64> {
        said.into_iter()
            .filter(|(_, packet)| *packet == Packet::Noop)
            .map(|(to, _)| to)
            .collect()
    };
    assert_eq!(
        woken(handle_packet(
            &mut scheduler,
            client,
            submit("f", JobPriority::Normal),
            now
        )),
        [1]
    );
    assert_eq!(
        woken(handle_packet(
            &mut scheduler,
            client,
            submit("f", JobPriority::Normal),
            now
        )),
        [2]
    );
    // The woken workers do not grab: all others are woken.
    assert!(scheduler.next_deadline().is_some());
    scheduler.expire(now + Duration::from_secs(2));
    assert_eq!(woken(drain(&mut scheduler)), [3]);
}

#[test]
fn a_woken_worker_that_leaves_or_takes_another_job_is_replaced() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let client = connect(&mut scheduler, 100);
    let workers = [1, 2, 3].map(|number| connect(&mut scheduler, number));
    for worker in workers {
        handle_packet(&mut scheduler, worker, can_do("f"), now);
        handle_packet(&mut scheduler, worker, Packet::PreSleep, now);
    }
    handle_packet(&mut scheduler, workers[0], can_do("urgent"), now);
    let said = handle_packet(
        &mut scheduler,
        client,
        submit("f", JobPriority::Normal),
        now,
    );
    assert!(said.contains(&(1, Packet::Noop)), "{said:?}");
    assert!(
        !handle_packet(
            &mut scheduler,
            client,
            submit("urgent", JobPriority::High),
            now
        )
        .contains(&(1, Packet::Noop))
    );
    let said = handle_packet(&mut scheduler, workers[0], Packet::GrabJobUniq, now);
    assert!(
        matches!(
            &said[..],
            [(1, Packet::JobAssignUniq { .. }), (2, Packet::Noop)]
        ),
        "{said:?}"
    );
    scheduler.disconnect(workers[1], now);
    assert_eq!(drain(&mut scheduler), [(3, Packet::Noop)]);
}

#[test]
fn only_the_worker_of_a_job_may_complete_it() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let (client, worker, thief) = (
        connect(&mut scheduler, 1),
        connect(&mut scheduler, 2),
        connect(&mut scheduler, 3),
    );
    let mut request = submit("f", JobPriority::Normal);
    if let Packet::SubmitJob { background, .. } = &mut request {
        *background = false;
    }
    handle_packet(&mut scheduler, client, request, now);
    handle_packet(&mut scheduler, worker, can_do("f"), now);
    let said = handle_packet(&mut scheduler, worker, Packet::GrabJob, now);
    let [(_, Packet::JobAssign { handle, .. })] = &said[..] else {
        panic!("{said:?}")
    };
    let complete = Packet::WorkComplete {
        handle: handle.clone(),
        data: Bytes::new(),
    };
    assert_eq!(
        handle_packet(&mut scheduler, thief, complete.clone(), now),
        []
    );
    assert_eq!(
        handle_packet(&mut scheduler, worker, complete.clone(), now),
        [(1, complete)]
    );
}

#[test]
fn idle_functions_make_room_for_new_ones() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    scheduler.settings.max_functions = 2;
    let worker = connect(&mut scheduler, 1);
    for function in ["a", "b"] {
        handle_packet(&mut scheduler, worker, can_do(function), now);
    }
    let said = handle_packet(&mut scheduler, worker, can_do("c"), now);
    assert!(matches!(&said[..], [(1, Packet::Error { .. })]), "{said:?}");
    handle_packet(
        &mut scheduler,
        worker,
        Packet::CantDo {
            function: Bytes::from_static(b"a"),
        },
        now,
    );
    assert_eq!(handle_packet(&mut scheduler, worker, can_do("c"), now), []);
    let names: Vec<_> = scheduler
        .functions()
        .map(|function| function.name.clone())
        .collect();
    assert_eq!(names, [&b"c"[..], b"b"]);
}

#[test]
fn repeated_registration_does_not_accumulate_hints() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let (client, worker) = (connect(&mut scheduler, 1), connect(&mut scheduler, 2));
    handle_packet(
        &mut scheduler,
        client,
        submit("f", JobPriority::Normal),
        now,
    );
    for _ in 0..10_000 {
        handle_packet(&mut scheduler, worker, can_do("f"), now);
        handle_packet(
            &mut scheduler,
            worker,
            Packet::CantDo {
                function: Bytes::from_static(b"f"),
            },
            now,
        );
    }
    assert!(scheduler.connections[&worker].hints.len() < 100);
}

/// A step of random clients and workers.
#[derive(Clone, Debug)]
enum SchedulerStep {
    Submit(usize, JobPriority),
    CanDo(usize, usize),
    CantDo(usize, usize),
    Grab(usize),
    SleepState(usize),
    Complete(usize),
    Reconnect(usize),
    Cancel(usize),
    Wait,
}

const WORKERS: usize = 4;
const FUNCTIONS: usize = 5;

fn any_step() -> impl Strategy<Value = SchedulerStep> {
    let priority = prop::sample::select(vec![
        JobPriority::High,
        JobPriority::Normal,
        JobPriority::Low,
    ]);
    prop_oneof![
        4 => (0..FUNCTIONS, priority).prop_map(|(f, p)| SchedulerStep::Submit(f, p)),
        3 => (0..WORKERS, 0..FUNCTIONS).prop_map(|(w, f)| SchedulerStep::CanDo(w, f)),
        1 => (0..WORKERS, 0..FUNCTIONS).prop_map(|(w, f)| SchedulerStep::CantDo(w, f)),
        4 => (0..WORKERS).prop_map(SchedulerStep::Grab),
        3 => (0..WORKERS).prop_map(SchedulerStep::SleepState),
        3 => (0..WORKERS).prop_map(SchedulerStep::Complete),
        1 => (0..WORKERS).prop_map(SchedulerStep::Reconnect),
        1 => (0usize..20).prop_map(SchedulerStep::Cancel),
        1 => Just(SchedulerStep::Wait),
    ]
}

/// A job in the reference model.
#[derive(Clone, Debug)]
struct ModelJob {
    key: QueueKey,
    function: usize,
    attempts: u32,
}

/// A worker in the reference model.
#[derive(Clone, Debug, Default)]
struct ModelWorker {
    connection: u64,
    workers: Vec<usize>,
    running: Vec<ModelJob>,
    /// Asleep and not sent a NOOP since.
    asleep: bool,
}

proptest! {
    /// Compares the scheduler with a model that scans everything: each grab is assigned the oldest job of the highest
    /// priority that the worker registered, and no worker sleeps while such a job waits.
    #[test]
    fn grabs_match_the_model_and_no_worker_misses_a_job(steps in vec(any_step(), 0..150)) {
        let mut now = Instant::now();
        let mut scheduler = scheduler();
        let client = connect(&mut scheduler, 0);
        let mut waiting: Vec<ModelJob> = Vec::new();
        let mut handles: HashMap<Bytes, JobId> = HashMap::new();
        let mut connections = 0u64;
        let mut workers: Vec<ModelWorker> = (0..WORKERS).map(|_| {
            connections += 1;
            connect(&mut scheduler, connections);
            ModelWorker { connection: connections, ..ModelWorker::default() }
        }).collect();
        let name = |function: usize| format!("f{function}");
        for step in steps {
            match step {
                SchedulerStep::Submit(function, priority) => {
                    scheduler.handle_packet(client, submit(&name(function), priority), now);
                    waiting.push(ModelJob { key: (priority, scheduler.last_job), function, attempts: 0 });
                }
                SchedulerStep::CanDo(w, f) => {
                    scheduler.handle_packet(ConnectionId(workers[w].connection), can_do(&name(f)), now);
                    if !workers[w].workers.contains(&f) {
                        workers[w].workers.push(f);
                    }
                }
                SchedulerStep::CantDo(w, f) => {
                    let function = name(f).into();
                    scheduler.handle_packet(ConnectionId(workers[w].connection), Packet::CantDo { function }, now);
                    workers[w].workers.retain(|workers| *workers != f);
                }
                SchedulerStep::Grab(w) => {
                    workers[w].asleep = false;
                    scheduler.handle_packet(ConnectionId(workers[w].connection), Packet::GrabJobUniq, now);
                }
                SchedulerStep::SleepState(w) => {
                    workers[w].asleep = true;
                    scheduler.handle_packet(ConnectionId(workers[w].connection), Packet::PreSleep, now);
                }
                SchedulerStep::Complete(w) => {
                    if let Some(job) = workers[w].running.pop() {
                        let handle = Bytes::from(format!("H:test:{}", job.key.1));
                        let packet = Packet::WorkComplete { handle, data: Bytes::new() };
                        scheduler.handle_packet(ConnectionId(workers[w].connection), packet, now);
                    }
                }
                SchedulerStep::Reconnect(w) => {
                    scheduler.disconnect(ConnectionId(workers[w].connection), now);
                    connections += 1;
                    connect(&mut scheduler, connections);
                    let lost = std::mem::take(&mut workers[w]);
                    workers[w].connection = connections;
                    waiting.extend(lost.running.into_iter().filter(|job| job.attempts < 2));
                }
                SchedulerStep::Cancel(index) => {
                    if index < waiting.len() {
                        let job = waiting.remove(index);
                        prop_assert!(scheduler.cancel(job.key.1));
                    }
                }
                SchedulerStep::Wait => {
                    now += Duration::from_secs(2);
                    scheduler.expire(now);
                }
            }
            for (to, packet) in drain(&mut scheduler) {
                let worker = workers.iter_mut().find(|worker| worker.connection == to);
                match (packet, worker) {
                    (Packet::JobCreated { handle }, None) => {
                        handles.insert(handle, scheduler.last_job);
                    }
                    (Packet::Noop, Some(worker)) => worker.asleep = false,
                    (Packet::NoJob, Some(worker)) => {
                        prop_assert!(!waiting.iter().any(|job| worker.workers.contains(&job.function)));
                    }
                    (Packet::JobAssignUniq { handle, .. }, Some(worker)) => {
                        let best = waiting.iter().filter(|job| worker.workers.contains(&job.function)).map(|job| job.key).min();
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
            prop_assert_eq!(scheduler.asleep, workers.iter().filter(|worker| worker.asleep).count());
            let total: usize = waiting.len() + workers.iter().map(|worker| worker.running.len()).sum::<usize>();
            prop_assert_eq!(scheduler.jobs.len(), total);
        }
        // After the wake timeout, no sleeping worker has registered the function of a waiting job.
        scheduler.expire(now + Duration::from_secs(2));
        for (to, packet) in drain(&mut scheduler) {
            prop_assert_eq!(packet, Packet::Noop);
            workers.iter_mut().find(|worker| worker.connection == to).unwrap().asleep = false;
        }
        for worker in workers.iter().filter(|worker| worker.asleep) {
            let missed = waiting.iter().find(|job| worker.workers.contains(&job.function));
            prop_assert!(missed.is_none(), "{worker:?} sleeps through {missed:?}");
        }
    }
}
