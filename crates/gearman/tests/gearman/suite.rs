//! Our worker and client with every job server: ours, gearmand, geard.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use nodeyard_gearman::client::{JobEvent, JobOutcome, JobRequest};
use nodeyard_gearman::codec::JobPriority;
use nodeyard_gearman::worker::{Job, JobError, JobInterrupt};
use nodeyard_testbeds::gearman::Kind;
use tokio::sync::{Notify, mpsc};

use crate::support::{InProcessWorker, ServerUnderTest, bytes, wait_until, within_timeout};

macro_rules! on_every_server {
    ($($name:ident),* $(,)?) => {
        mod on_ours {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(super::ServerUnderTest::ours().await).await; })*
        }
        mod on_gearmand {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(super::ServerUnderTest::interop(super::Kind::Gearmand)).await; })*
        }
        mod on_geard {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(super::ServerUnderTest::interop(super::Kind::Geard)).await; })*
        }
    };
}

on_every_server!(
    events_arrive_in_order,
    payloads_may_be_large_and_binary,
    background_jobs_have_a_status,
    higher_priorities_go_first,
    functions_can_be_added_while_asleep,
    unregistered_functions_are_removed,
    a_handler_may_unregister_its_own_function,
    failures_and_panics_leave_the_worker_alive,
    a_pool_runs_as_many_jobs_as_it_has_slots,
    draining_finishes_running_jobs,
    stopping_interrupts_handlers,
    a_lost_worker_fails_its_job,
    functions_are_registered_again_after_a_server_restart,
    workers_are_listed_with_their_names,
    names_with_blanks_are_listed,
);

async fn events_arrive_in_order(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let talk = |job: Job| async move {
        assert_eq!(job.function(), "talk");
        job.progress(1, 4).await;
        job.data("one ").await;
        job.warn("careful").await;
        job.progress(4, 4).await;
        Ok(Bytes::from(
            [b"done ", job.payload().as_ref(), b" ", job.unique()].concat(),
        ))
    };
    worker.handle.register("talk", talk).unwrap();
    let request = JobRequest::new("talk", "now").unique("u-1");
    let mut job = within_timeout("job is created", server.client().submit(&request))
        .await
        .unwrap();
    let mut events = Vec::new();
    while let Some(event) = within_timeout("job ends", job.next()).await {
        events.push(event);
    }
    let expected = [
        JobEvent::Status {
            numerator: 1,
            denominator: 4,
        },
        JobEvent::Data(bytes("one ")),
        JobEvent::Warning(bytes("careful")),
        JobEvent::Status {
            numerator: 4,
            denominator: 4,
        },
        JobEvent::Complete(bytes("done now u-1")),
    ];
    // The client was dropped after the submit, and the job lived on.
    assert_eq!(events, expected);
}

async fn payloads_may_be_large_and_binary(server: ServerUnderTest) {
    let _worker = InProcessWorker::echo(server.endpoint()).await;
    let payload: Bytes = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let job = server
        .client()
        .submit(&JobRequest::new("echo", payload.clone()))
        .await
        .unwrap();
    let outcome = within_timeout("large job ends", job.wait()).await;
    assert!(
        outcome == JobOutcome::Complete(payload),
        "the payload came back changed"
    );
}

async fn background_jobs_have_a_status(server: ServerUnderTest) {
    let client = server.client();
    let job = client
        .submit_background(&JobRequest::new("slow", ""))
        .await
        .unwrap();
    let status = client.status(&job).await.unwrap();
    assert!(status.known && !status.running, "{status:?}");

    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let release = Arc::new(Notify::new());
    let gate = release.clone();
    let slow = move |job: Job| {
        let gate = gate.clone();
        async move {
            job.progress(3, 7).await;
            gate.notified().await;
            Ok(Bytes::new())
        }
    };
    worker.handle.register("slow", slow).unwrap();
    wait_until("the server knows the progress", || async {
        let status = client.status(&job).await.unwrap();
        status.running && (status.numerator, status.denominator) == (3, 7)
    })
    .await;
    release.notify_one();
    wait_until("the job is forgotten", || async {
        !client.status(&job).await.unwrap().known
    })
    .await;
}

async fn higher_priorities_go_first(server: ServerUnderTest) {
    let client = server.client();
    for (payload, priority) in [
        ("low", JobPriority::Low),
        ("normal", JobPriority::Normal),
        ("high", JobPriority::High),
    ] {
        let request = JobRequest::new("note", payload).priority(priority);
        client.submit_background(&request).await.unwrap();
    }
    let (seen, mut order) = mpsc::unbounded_channel();
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let note = move |job: Job| {
        seen.send(String::from_utf8_lossy(job.payload()).into_owned())
            .unwrap();
        async { Ok(Bytes::new()) }
    };
    worker.handle.register("note", note).unwrap();
    for expected in ["high", "normal", "low"] {
        assert_eq!(
            within_timeout("jobs are done", order.recv())
                .await
                .as_deref(),
            Some(expected)
        );
    }
}

async fn functions_can_be_added_while_asleep(server: ServerUnderTest) {
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let client = server.client();
    // Once this is done the worker goes to sleep, and nothing that it can do is submitted any more.
    client
        .submit(&JobRequest::new("echo", ""))
        .await
        .unwrap()
        .wait()
        .await;
    let waiting = client.submit(&JobRequest::new("late", "x")).await.unwrap();
    worker
        .handle
        .register("late", async |_job| Ok(bytes("here")))
        .unwrap();
    assert_eq!(
        within_timeout("the new function is served", waiting.wait()).await,
        JobOutcome::Complete(bytes("here"))
    );
    let later = client.submit(&JobRequest::new("late", "x")).await.unwrap();
    assert_eq!(
        within_timeout("and served again", later.wait()).await,
        JobOutcome::Complete(bytes("here"))
    );
}

async fn unregistered_functions_are_removed(server: ServerUnderTest) {
    let worker = InProcessWorker::echo(server.endpoint()).await;
    worker
        .handle
        .register("gone", async |_job| Ok(Bytes::new()))
        .unwrap();
    wait_until("both are registered", || async {
        server
            .function("gone")
            .await
            .is_some_and(|f| f.workers == 1)
    })
    .await;
    assert!(worker.handle.unregister("gone"));
    assert!(!worker.handle.unregister("gone"));
    wait_until("one is withdrawn", || async {
        server.function("gone").await.is_none_or(|f| f.workers == 0)
    })
    .await;
    assert_eq!(server.function("echo").await.unwrap().workers, 1);
}

async fn a_handler_may_unregister_its_own_function(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 2);
    let handle = worker.handle.clone();
    let once = move |_job| {
        let handle = handle.clone();
        async move {
            handle.unregister("once");
            handle.synced().await;
            Ok(bytes("the only answer"))
        }
    };
    worker.handle.register("once", once).unwrap();
    let job = server
        .client()
        .submit(&JobRequest::new("once", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("it is answered", job.wait()).await,
        JobOutcome::Complete(bytes("the only answer"))
    );
    wait_until("it is withdrawn", || async {
        server.function("once").await.is_none_or(|f| f.workers == 0)
    })
    .await;
}

async fn failures_and_panics_leave_the_worker_alive(server: ServerUnderTest) {
    let worker = InProcessWorker::echo(server.endpoint()).await;
    worker
        .handle
        .register("fail", async |_job| Err(JobError::Fail))
        .unwrap();
    let raise = async |_job| Err(JobError::Exception("out of cheese".to_owned()));
    worker.handle.register("raise", raise).unwrap();
    worker
        .handle
        .register("panic", async |_job| panic!("on purpose"))
        .unwrap();
    let client = server.client();
    let run = async |function: &str| {
        let job = client
            .submit(&JobRequest::new(function, "x"))
            .await
            .unwrap();
        within_timeout(function, job.wait()).await
    };
    assert_eq!(run("fail").await, JobOutcome::Fail(Bytes::new()));
    assert_eq!(
        run("raise").await,
        JobOutcome::Exception(bytes("out of cheese"))
    );
    assert_eq!(
        run("panic").await,
        JobOutcome::Exception(bytes("handler panicked: on purpose"))
    );
    assert_eq!(run("echo").await, JobOutcome::Complete(bytes("x")));
}

async fn a_pool_runs_as_many_jobs_as_it_has_slots(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 2);
    let (started, mut starts) = mpsc::unbounded_channel();
    let release = Arc::new(Notify::new());
    let most = Arc::new(AtomicUsize::new(0));
    let (gate, peak) = (release.clone(), most.clone());
    let running = Arc::new(AtomicUsize::new(0));
    let hold = move |_job| {
        let (gate, peak, running, started) =
            (gate.clone(), peak.clone(), running.clone(), started.clone());
        async move {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            started.send(()).unwrap();
            gate.notified().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Bytes::new())
        }
    };
    worker.handle.register("hold", hold).unwrap();
    let client = server.client();
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(client.submit(&JobRequest::new("hold", "")).await.unwrap());
    }
    for _ in 0..2 {
        within_timeout("two start", starts.recv()).await;
    }
    let status = server.function("hold").await.unwrap();
    assert_eq!((status.total, status.running), (4, 2));
    // notify_one remembers one call only, so each release waits until the one before has had its effect.
    for _ in 0..2 {
        release.notify_one();
        within_timeout("another starts", starts.recv()).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

async fn draining_finishes_running_jobs(server: ServerUnderTest) {
    let mut worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let (started, mut starts) = mpsc::unbounded_channel();
    let release = Arc::new(Notify::new());
    let gate = release.clone();
    let hold = move |_job| {
        let (gate, started) = (gate.clone(), started.clone());
        async move {
            started.send(()).unwrap();
            gate.notified().await;
            Ok(bytes("finished"))
        }
    };
    worker.handle.register("hold", hold).unwrap();
    let client = server.client();
    let running = client.submit(&JobRequest::new("hold", "1")).await.unwrap();
    within_timeout("the first starts", starts.recv()).await;
    client
        .submit_background(&JobRequest::new("hold", "2"))
        .await
        .unwrap();
    worker.handle.drain();
    release.notify_one();
    assert_eq!(
        within_timeout("the first ends", running.wait()).await,
        JobOutcome::Complete(bytes("finished"))
    );
    within_timeout("the worker ends", &mut worker.task)
        .await
        .unwrap();
    wait_until("the second waits", || async {
        server
            .function("hold")
            .await
            .is_some_and(|f| (f.total, f.running, f.workers) == (1, 0, 0))
    })
    .await;
    assert!(starts.try_recv().is_err());
}

async fn stopping_interrupts_handlers(server: ServerUnderTest) {
    let mut worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let patient = async |job: Job| {
        job.data("started").await;
        match job.interrupted().await {
            JobInterrupt::Stopping => Err(JobError::Fail),
            JobInterrupt::ConnectionLost => Ok(Bytes::new()),
        }
    };
    worker.handle.register("patient", patient).unwrap();
    let mut job = server
        .client()
        .submit(&JobRequest::new("patient", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("it starts", job.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    worker.shutdown.cancel();
    assert_eq!(
        within_timeout("it ends", job.next()).await,
        Some(JobEvent::Fail)
    );
    within_timeout("the worker ends", &mut worker.task)
        .await
        .unwrap();
}

async fn a_lost_worker_fails_its_job(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let stuck = async |job: Job| {
        job.data("started").await;
        std::future::pending().await
    };
    worker.handle.register("stuck", stuck).unwrap();
    let mut job = server
        .client()
        .submit(&JobRequest::new("stuck", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("it starts", job.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    worker.task.abort();
    assert_eq!(
        within_timeout("it fails", job.next()).await,
        Some(JobEvent::Fail)
    );
    assert_eq!(job.next().await, None);
}

async fn functions_are_registered_again_after_a_server_restart(mut server: ServerUnderTest) {
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let (finished, mut results) = mpsc::unbounded_channel();
    let long = move |job: Job| {
        let finished = finished.clone();
        async move {
            job.data("started").await;
            let interrupt = job.interrupted().await;
            finished.send(interrupt).unwrap();
            Ok(bytes("kept for later"))
        }
    };
    worker.handle.register("long", long).unwrap();
    let client = server.client();
    let mut job = client.submit(&JobRequest::new("long", "")).await.unwrap();
    assert_eq!(
        within_timeout("it starts", job.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    server.stop().await;
    assert_eq!(
        within_timeout("the handler is told", results.recv()).await,
        Some(JobInterrupt::ConnectionLost)
    );
    assert_eq!(
        within_timeout("the client is told", job.next()).await,
        Some(JobEvent::ConnectionLost)
    );
    server.restart().await;
    wait_until("everything is registered again", || async {
        let workers = async |name| server.function(name).await.is_some_and(|f| f.workers == 1);
        workers("echo").await && workers("long").await
    })
    .await;
    let job = within_timeout(
        "a new job is taken",
        client.submit(&JobRequest::new("echo", "again")),
    )
    .await
    .unwrap();
    assert_eq!(
        within_timeout("and done", job.wait()).await,
        JobOutcome::Complete(bytes("again"))
    );
}

async fn workers_are_listed_with_their_names(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 2);
    worker
        .handle
        .register("named", async |_job| Ok(Bytes::new()))
        .unwrap();
    wait_until("both slots are listed", || async {
        let listed = server.admin().await.workers().await;
        let mut names: Vec<_> = listed
            .unwrap_or_default()
            .into_iter()
            .filter(|worker| worker.functions == ["named"])
            .map(|worker| worker.client_id)
            .collect();
        names.sort();
        names == ["test worker 1", "test worker 2"]
    })
    .await;
}

async fn names_with_blanks_are_listed(server: ServerUnderTest) {
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let name = "image-build:windows server\u{a0}2022";
    let done = async |_job| Ok(Bytes::from_static(b"done"));
    worker.handle.register(name, done).unwrap();
    wait_until("the function is listed by its name", || async {
        let listed = server.function(name).await;
        listed.is_some_and(|listed| listed.workers == 1)
    })
    .await;
    let job = server.client().submit(&JobRequest::new(name, "")).await;
    assert_eq!(
        within_timeout("it can be called", job.unwrap().wait()).await,
        JobOutcome::Complete(bytes("done"))
    );
}
