//! Connection losses, and options that only our server has.

use std::time::Duration;

use bytes::Bytes;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{
    ClientError, JobClient, JobClientOptions, JobEvent, JobOutcome, JobRequest,
};
use nodeyard_gearman::server::JobServerOptions;
use nodeyard_gearman::worker::Job;
use nodeyard_testbeds::gearman::Kind;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::support::{
    InProcessServer, InProcessWorker, ServerUnderTest, bytes, local, wait_until, within_timeout,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_server_leaves_the_outcome_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let working = ServerUnderTest::ours().await;
    let mut options = JobClientOptions::new(vec![
        GearmanEndpoint::new("127.0.0.1", port),
        working.endpoint(),
    ]);
    // Long enough to send something on a busy machine.
    options.response_timeout = Duration::from_secs(2);
    let client = JobClient::new(options);
    let silent = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).await.unwrap();
        heard
    });
    let error = within_timeout(
        "the submit ends",
        client.submit_background(&JobRequest::new("f", "")),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, ClientError::OutcomeUnknown { .. }),
        "{error}"
    );
    // The request had been sent, so it must not have been sent to another server as well.
    assert!(
        !within_timeout("the client hangs up", silent)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(working.function("f").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_or_refusing_server_is_skipped() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let full = InProcessServer::start(JobServerOptions {
        max_jobs: 0,
        ..local()
    })
    .await;
    let working = ServerUnderTest::ours().await;
    let servers = vec![
        GearmanEndpoint::new("127.0.0.1", dead),
        GearmanEndpoint::new("127.0.0.1", full.port),
        working.endpoint(),
    ];
    let handle = JobClient::new(JobClientOptions::new(servers.clone()))
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap();
    assert_eq!(handle.server, 2);
    let options = JobClientOptions::new(servers[..2].to_vec());
    let error = JobClient::new(options)
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_share_the_slots_of_a_worker() {
    let (first, second) = (ServerUnderTest::ours().await, ServerUnderTest::ours().await);
    let worker = InProcessWorker::start(vec![first.endpoint(), second.endpoint()], 1);
    let (release, gate) = tokio::sync::watch::channel(false);
    let hold = move |job: Job| {
        let mut gate = gate.clone();
        async move {
            job.data("started").await;
            let _ = gate.wait_for(|open| *open).await;
            Ok(Bytes::copy_from_slice(job.server().as_bytes()))
        }
    };
    worker.handle.register("hold", hold).unwrap();
    let mut one = first
        .client()
        .submit(&JobRequest::new("hold", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("the first starts", one.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    let mut two = second
        .client()
        .submit(&JobRequest::new("hold", ""))
        .await
        .unwrap();
    let status = second.function("hold").await.unwrap();
    assert_eq!(
        (status.total, status.running),
        (1, 0),
        "the only slot is taken"
    );
    release.send(true).unwrap();
    let end =
        |server: &ServerUnderTest| Some(JobEvent::Complete(bytes(&server.endpoint().to_string())));
    assert_eq!(
        within_timeout("the first ends", one.next()).await,
        end(&first)
    );
    assert_eq!(
        within_timeout("the second starts", two.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    assert_eq!(
        within_timeout("the second ends", two.next()).await,
        end(&second)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn job_attempts_requeue_the_job_of_a_lost_worker() {
    let server = ServerUnderTest::Ours(
        InProcessServer::start(JobServerOptions {
            job_attempts: 2,
            ..local()
        })
        .await,
    );
    let stuck = async |job: Job| {
        job.data("started").await;
        std::future::pending().await
    };
    let first = InProcessWorker::start(vec![server.endpoint()], 1);
    first.handle.register("work", stuck).unwrap();
    let mut job = server
        .client()
        .submit(&JobRequest::new("work", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("it starts", job.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    drop(first);
    let second = InProcessWorker::start(vec![server.endpoint()], 1);
    second
        .handle
        .register("work", async |_job| Ok(bytes("done")))
        .unwrap();
    assert_eq!(
        within_timeout("another does it", job.next()).await,
        Some(JobEvent::Complete(bytes("done")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_exceeds_its_timeout_fails() {
    let server = ServerUnderTest::ours().await;
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let forever = async |_job| std::future::pending().await;
    worker
        .handle
        .register_with_timeout("forever", Duration::from_millis(100), forever)
        .unwrap();
    let job = server
        .client()
        .submit(&JobRequest::new("forever", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("it is given up", job.wait()).await,
        JobOutcome::Fail(Bytes::new())
    );
    let ServerUnderTest::Ours(ours) = &server else {
        panic!()
    };
    assert_eq!(ours.handle.metrics().counters.timed_out, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn coalesced_uniques_share_one_job() {
    let options = JobServerOptions {
        coalesce_uniques: true,
        ..local()
    };
    let server = ServerUnderTest::Ours(InProcessServer::start(options).await);
    let (one, two) = (server.client(), server.client());
    let request = JobRequest::new("once", "").unique("same");
    let first = one.submit(&request).await.unwrap();
    let second = two.submit(&request).await.unwrap();
    let again = one.submit(&request).await.unwrap();
    let other = one
        .submit(&JobRequest::new("once", "").unique("other"))
        .await
        .unwrap();
    assert_eq!(first.handle(), second.handle());
    assert_ne!(first.handle(), other.handle());
    assert!(one.status_by_unique(0, "same").await.unwrap().known);
    drop((first, one));
    let worker = InProcessWorker::start(vec![server.endpoint()], 1);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = runs.clone();
    let once = move |_job| {
        let run = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { Ok(bytes(&run.to_string())) }
    };
    worker.handle.register("once", once).unwrap();
    let results = [second.wait().await, again.wait().await, other.wait().await];
    assert_eq!(results[0], results[1]);
    assert_eq!(runs.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_background_jobs_outlive_their_client() {
    let server = ServerUnderTest::ours().await;
    let client = server.client();
    let waiting = client.submit(&JobRequest::new("f", "")).await.unwrap();
    client
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap();
    assert_eq!(server.function("f").await.unwrap().total, 2);
    drop((client, waiting));
    wait_until("one is left", || async {
        server.function("f").await.unwrap().total == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echo_and_admin_commands_are_answered() {
    let server = ServerUnderTest::ours().await;
    assert_eq!(
        server.client().echo(0, "a\0b").await.unwrap(),
        bytes("a\0b")
    );
    let mut admin = server.admin().await;
    assert_eq!(admin.version().await.unwrap(), env!("CARGO_PKG_VERSION"));
    let handle = server
        .client()
        .submit_background(&JobRequest::new("f", "").unique("u"))
        .await
        .unwrap();
    let jobs = admin.show_jobs().await.unwrap();
    assert_eq!((jobs.len(), jobs[0].queued), (1, true));
    assert_eq!(jobs[0].handle, handle.to_string());
    assert_eq!(admin.show_unique_jobs().await.unwrap(), ["u"]);
    assert!(admin.cancel_job(&handle.to_string()).await.unwrap());
    assert!(!admin.cancel_job(&handle.to_string()).await.unwrap());
    assert!(admin.cancel_job("two words").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn gearmand_answers_requests_that_gear_ignores() {
    let server = ServerUnderTest::interop(Kind::Gearmand);
    let client = server.client();
    assert_eq!(client.echo(0, "a\0b").await.unwrap(), bytes("a\0b"));
    let handle = client
        .submit_background(&JobRequest::new("f", "").unique("u"))
        .await
        .unwrap();
    assert!(client.status_by_unique(0, "u").await.unwrap().known);
    assert!(!client.status_by_unique(0, "other").await.unwrap().known);
    let mut admin = server.admin().await;
    assert!(admin.version().await.unwrap().starts_with("1."));
    assert_eq!(admin.show_unique_jobs().await.unwrap(), ["u"]);
    assert_eq!(
        admin.show_jobs().await.unwrap()[0].handle,
        handle.to_string()
    );
    admin.max_queue("f", Some(1)).await.unwrap();
    let full = client
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap_err();
    assert!(matches!(full, ClientError::Refused { .. }), "{full}");
    assert!(admin.cancel_job(&handle.to_string()).await.unwrap());
}
