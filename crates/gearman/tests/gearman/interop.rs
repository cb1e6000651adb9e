//! Clients, workers and tools of other implementations with our server.

use bytes::Bytes;
use nodeyard_gearman::client::{JobOutcome, JobRequest};
use nodeyard_gearman::server::JobServerOptions;
use nodeyard_gearman::worker::{Job, JobError};
use nodeyard_testbeds::gearman::{Peer, python, tool};

use crate::support::{
    InProcessServer, InProcessWorker, ServerUnderTest, bytes, local, wait_until, within_timeout,
};

/// Runs blocking code concurrently with the server.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    within_timeout("a foreign program ends", tokio::task::spawn_blocking(work))
        .await
        .unwrap()
}

async fn run_tool(program: &'static str, port: u16, arguments: &[&str]) -> (bool, String) {
    let port = port.to_string();
    let mut all = vec!["-h", "127.0.0.1", "-p", &port];
    all.extend(arguments);
    let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
    let output = run_blocking(move || {
        let arguments: Vec<&str> = all.iter().map(String::as_str).collect();
        tool(program, &arguments).unwrap()
    })
    .await;
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

async fn gear_client(port: u16, function: &'static str, payload: &'static str) -> String {
    let output = run_blocking(move || {
        python("gear_client.py", &[&port.to_string(), function, payload]).unwrap()
    })
    .await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn server_and_worker() -> (ServerUnderTest, InProcessWorker) {
    let server = ServerUnderTest::ours().await;
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let talk = async |job: Job| {
        job.progress(3, 9).await;
        job.data("first ").await;
        Ok(bytes("last"))
    };
    worker.handle.register("talk", talk).unwrap();
    worker
        .handle
        .register("fail", async |_job| Err(JobError::Fail))
        .unwrap();
    let raise = async |_job| Err(JobError::Exception("broken".to_owned()));
    worker.handle.register("raise", raise).unwrap();
    worker.handle.synced().await;
    (server, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn our_worker_serves_the_gearman_command() {
    let (server, _worker) = server_and_worker().await;
    let port = server.port();
    assert_eq!(
        run_tool("gearman", port, &["-f", "echo", "hello"]).await,
        (true, "hello".to_owned())
    );
    let (success, text) = run_tool("gearman", port, &["-I", "-f", "talk", "x"]).await;
    assert!(
        success && text.contains("first last") && text.contains("33%"),
        "{text}"
    );
    assert!(!run_tool("gearman", port, &["-f", "fail", "x"]).await.0);
    let (success, text) = run_tool("gearman", port, &["-f", "raise", "x"]).await;
    assert!(!success, "an exception must not look like success: {text}");
    // A background submit returns at once, and the job is done behind its back.
    assert!(
        run_tool("gearman", port, &["-b", "-L", "-f", "nobody", "x"])
            .await
            .0
    );
    assert_eq!(server.function("nobody").await.unwrap().total, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gearman_command_serves_our_client() {
    let server = ServerUnderTest::ours().await;
    let port = server.port().to_string();
    let _worker = Peer::start(
        "gearman",
        &[
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-w",
            "-f",
            "count",
            "--",
            "wc",
            "-c",
        ],
    )
    .unwrap();
    let client = server.client();
    for payload in ["12345", "1234567"] {
        let job = client
            .submit(&JobRequest::new("count", payload))
            .await
            .unwrap();
        let expected = bytes(&format!("{}\n", payload.len()));
        assert_eq!(
            within_timeout("it is counted", job.wait()).await,
            JobOutcome::Complete(expected)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gearadmin_parses_our_responses() {
    let (server, _worker) = server_and_worker().await;
    let port = server.port();
    let client = server.client();
    let handle = client
        .submit_background(&JobRequest::new("later", "").unique("u-7"))
        .await
        .unwrap();
    let ask = async |arguments: &[&str]| run_tool("gearadmin", port, arguments).await.1;

    let status = ask(&["--status"]).await;
    assert!(
        status.contains("echo\t0\t0\t1\n") && status.contains("later\t1\t0\t0\n"),
        "{status}"
    );
    let workers = ask(&["--workers"]).await;
    assert!(
        workers.contains(" 127.0.0.1 test worker 1 : echo"),
        "{workers}"
    );
    assert!(
        ask(&["--server-version"])
            .await
            .contains(env!("CARGO_PKG_VERSION"))
    );
    assert!(
        ask(&["--getpid"])
            .await
            .contains(&std::process::id().to_string())
    );
    assert!(
        ask(&["--priority-status"])
            .await
            .contains("later\t0\t1\t0\t0\n")
    );
    assert!(ask(&["--show-unique-jobs"]).await.contains("u-7"));
    assert!(ask(&["--show-jobs"]).await.contains(&handle.to_string()));
    assert_eq!(
        ask(&["--cancel-job", &handle.to_string()]).await.trim(),
        "OK"
    );
    assert!(!client.status(&handle).await.unwrap().known);
    assert_eq!(ask(&["--create-function", "made"]).await.trim(), "OK");
    assert!(server.function("made").await.is_some());
    assert_eq!(ask(&["--drop-function", "made"]).await.trim(), "OK");
    assert!(server.function("made").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn our_worker_serves_a_gear_client() {
    let (server, _worker) = server_and_worker().await;
    let heard = gear_client(server.port(), "talk", "x").await;
    for part in [
        "\"complete\": true",
        "\"failure\": false",
        "[\"first \", \"last\"]",
        "\"numerator\": 3",
    ] {
        assert!(heard.contains(part), "{heard}");
    }
    assert!(
        gear_client(server.port(), "fail", "x")
            .await
            .contains("\"failure\": true")
    );
    let heard = gear_client(server.port(), "raise", "x").await;
    assert!(
        heard.contains("\"failure\": true") && heard.contains("\"exception\": null"),
        "{heard}"
    );

    // gear never enables exceptions but understands them.
    let options = JobServerOptions {
        strict_exceptions: false,
        ..local()
    };
    let server = ServerUnderTest::Ours(InProcessServer::start(options).await);
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let raise = async |_job| Err(JobError::Exception("broken".to_owned()));
    worker.handle.register("raise", raise).unwrap();
    let heard = gear_client(server.port(), "raise", "x").await;
    assert!(heard.contains("\"exception\": \"broken\""), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gear_worker_serves_our_client() {
    let server = ServerUnderTest::ours().await;
    let port = server.port().to_string();
    let peer = run_blocking(move || Peer::python("gear_worker.py", &[&port]).unwrap()).await;
    let client = server.client();
    let run = async |function: &str| {
        let job = client
            .submit(&JobRequest::new(function, "abc"))
            .await
            .unwrap();
        within_timeout(function, job.wait()).await
    };
    assert_eq!(
        run("reverse").await,
        JobOutcome::Complete(bytes("some cba"))
    );
    assert_eq!(run("fail").await, JobOutcome::Fail(Bytes::new()));
    assert_eq!(run("raise").await, JobOutcome::Exception(bytes("broken")));
    wait_until("gear's worker is listed", || async {
        let listed = server.admin().await.workers().await.unwrap();
        listed
            .iter()
            .any(|worker| worker.client_id == "gear worker" && worker.functions.len() == 3)
    })
    .await;
    drop(peer);
    wait_until("and gone when it is killed", || async {
        server.function("reverse").await.unwrap().workers == 0
    })
    .await;
}
