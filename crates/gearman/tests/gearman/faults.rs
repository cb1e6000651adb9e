//! Losses in odd moments, and what only our server offers.

use std::time::Duration;

use bytes::Bytes;
use nodeyard_gearman::Endpoint;
use nodeyard_gearman::client::{Client, ClientError, ClientOptions, JobEvent, JobRequest, Outcome};
use nodeyard_gearman::server::ServerOptions;
use nodeyard_gearman::worker::Job;
use nodeyard_testbeds::gearman::Kind;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::support::{AnyServer, OurServer, RunningWorker, bytes, local, soon, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_leaves_the_outcome_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let working = AnyServer::ours().await;
    let mut options =
        ClientOptions::new(vec![Endpoint::new("127.0.0.1", port), working.endpoint()]);
    // Long enough to send something on a busy machine.
    options.answer_timeout = Duration::from_secs(2);
    let client = Client::new(options);
    let silent = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).await.unwrap();
        heard
    });
    let error = soon(
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
        !soon("the client hangs up", silent)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(working.function("f").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_or_refusing_server_is_passed_over() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let full = OurServer::start(ServerOptions {
        max_jobs: 0,
        ..local()
    })
    .await;
    let working = AnyServer::ours().await;
    let servers = vec![
        Endpoint::new("127.0.0.1", dead),
        Endpoint::new("127.0.0.1", full.port),
        working.endpoint(),
    ];
    let handle = Client::new(ClientOptions::new(servers.clone()))
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap();
    assert_eq!(handle.server, 2);
    let options = ClientOptions::new(servers[..2].to_vec());
    let error = Client::new(options)
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pool_serves_several_servers_within_its_slots() {
    let (first, second) = (AnyServer::ours().await, AnyServer::ours().await);
    let worker = RunningWorker::start(vec![first.endpoint(), second.endpoint()], 1);
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
        soon("the first starts", one.next()).await,
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
    let end = |server: &AnyServer| Some(JobEvent::Complete(bytes(&server.endpoint().to_string())));
    assert_eq!(soon("the first ends", one.next()).await, end(&first));
    assert_eq!(
        soon("the second starts", two.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    assert_eq!(soon("the second ends", two.next()).await, end(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_tried_again_where_the_server_is_told_to() {
    let server = AnyServer::Ours(
        OurServer::start(ServerOptions {
            job_attempts: 2,
            ..local()
        })
        .await,
    );
    let stuck = async |job: Job| {
        job.data("started").await;
        std::future::pending().await
    };
    let first = RunningWorker::start(vec![server.endpoint()], 1);
    first.handle.register("work", stuck).unwrap();
    let mut job = server
        .client()
        .submit(&JobRequest::new("work", ""))
        .await
        .unwrap();
    assert_eq!(
        soon("it starts", job.next()).await,
        Some(JobEvent::Data(bytes("started")))
    );
    drop(first);
    let second = RunningWorker::start(vec![server.endpoint()], 1);
    second
        .handle
        .register("work", async |_job| Ok(bytes("done")))
        .unwrap();
    assert_eq!(
        soon("another does it", job.next()).await,
        Some(JobEvent::Complete(bytes("done")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_outlives_its_time_fails() {
    let server = AnyServer::ours().await;
    let worker = RunningWorker::start(vec![server.endpoint()], 1);
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
        soon("it is given up", job.wait()).await,
        Outcome::Fail(Bytes::new())
    );
    let AnyServer::Ours(ours) = &server else {
        panic!()
    };
    assert_eq!(ours.handle.metrics().counters.timed_out, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_uniques_share_one_job_where_the_server_is_told_to() {
    let options = ServerOptions {
        coalesce_uniques: true,
        ..local()
    };
    let server = AnyServer::Ours(OurServer::start(options).await);
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
    let worker = RunningWorker::start(vec![server.endpoint()], 1);
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
async fn foreground_jobs_go_with_their_client_and_background_jobs_stay() {
    let server = AnyServer::ours().await;
    let client = server.client();
    let waiting = client.submit(&JobRequest::new("f", "")).await.unwrap();
    client
        .submit_background(&JobRequest::new("f", ""))
        .await
        .unwrap();
    assert_eq!(server.function("f").await.unwrap().total, 2);
    drop((client, waiting));
    until("one is left", || async {
        server.function("f").await.unwrap().total == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echo_and_admin_answers_arrive() {
    let server = AnyServer::ours().await;
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
async fn gearmand_answers_what_gear_does_not() {
    let server = AnyServer::foreign(Kind::Gearmand);
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
