//! TLS with client certificates, and access rights by certificate.

use std::time::Duration;

use nodeyard_gearman::client::{
    AdminClient, ClientError, JobClient, JobClientOptions, JobOutcome, JobRequest,
};
use nodeyard_gearman::server::{AccessList, JobServer, JobServerError, JobServerOptions, Rights};
use nodeyard_gearman::{ClientTls, GearmanEndpoint, HostCheck, ServerTls};
use nodeyard_testbeds::gearman::{ExternalJobServer, Kind, Peer, Tls, python};

use crate::support::{
    GearmanTestCa, InProcessServer, InProcessWorker, bytes, client_tls, local, tls_files,
    within_timeout,
};

fn endpoint(port: u16, tls: &Tls) -> GearmanEndpoint {
    GearmanEndpoint::new("127.0.0.1", port).with_tls(client_tls(tls))
}

fn client(port: u16, tls: &Tls) -> JobClient {
    JobClient::new(JobClientOptions::new(vec![endpoint(port, tls)]))
}

async fn secure_server(authority: &GearmanTestCa, access: Option<AccessList>) -> InProcessServer {
    let tls = ServerTls::new(&tls_files(&authority.sign("server.example"))).unwrap();
    InProcessServer::start(JobServerOptions {
        tls: Some(tls),
        access,
        ..local()
    })
    .await
}

async fn run_job_on(port: u16, authority: &GearmanTestCa) {
    let _worker = InProcessWorker::echo(endpoint(port, &authority.sign("builder"))).await;
    let client = client(port, &authority.sign("main"));
    let payload = "x".repeat(300_000);
    let job = within_timeout(
        "job is created",
        client.submit(&JobRequest::new("echo", payload.clone())),
    )
    .await
    .unwrap();
    assert!(
        within_timeout("job is done", job.wait()).await == JobOutcome::Complete(payload.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_speaks_tls() {
    let authority = GearmanTestCa::new();
    let server = secure_server(&authority, None).await;
    run_job_on(server.port, &authority).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn geard_speaks_tls_with_us() {
    let authority = GearmanTestCa::new();
    let server =
        ExternalJobServer::start(Kind::Geard, Some(authority.sign("server.example"))).unwrap();
    run_job_on(server.port(), &authority).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gear_speaks_tls_with_our_server() {
    let authority = GearmanTestCa::new();
    let server = secure_server(&authority, None).await;
    let (worker, caller) = (authority.sign("builder"), authority.sign("main"));
    let port = server.port.to_string();
    let arguments =
        |tls: &Tls| [&tls.ca, &tls.cert, &tls.key].map(|path| path.to_str().unwrap().to_owned());
    let ([ca, cert, key], port_) = (arguments(&worker), port.clone());
    let start = move || Peer::python("gear_worker.py", &[&port_, &ca, &cert, &key]).unwrap();
    let _peer = tokio::task::spawn_blocking(start).await.unwrap();
    let [ca, cert, key] = arguments(&caller);
    let call = move || {
        python(
            "gear_client.py",
            &[&port, "reverse", "abc", &ca, &cert, &key],
        )
        .unwrap()
    };
    let output = within_timeout("gear's client ends", tokio::task::spawn_blocking(call))
        .await
        .unwrap();
    let heard = String::from_utf8_lossy(&output.stdout);
    assert!(heard.contains("[\"some \", \"cba\"]"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_certificates_are_rejected() {
    let authority = GearmanTestCa::new();
    let server = secure_server(&authority, None).await;
    let request = JobRequest::new("echo", "");

    let plain = JobClient::new(JobClientOptions::new(vec![GearmanEndpoint::new(
        "127.0.0.1",
        server.port,
    )]));
    assert!(
        within_timeout("plain client ends", plain.submit(&request))
            .await
            .is_err()
    );

    // A certificate of another CA, presented by a client that trusts ours.
    let mut files = tls_files(&authority.sign("x"));
    let interop = GearmanTestCa::new();
    let foreign_tls = interop.sign("main");
    files.cert = foreign_tls.cert.clone();
    files.key = foreign_tls.key.clone();
    let tls = ClientTls::new(&files, HostCheck::ChainOnly).unwrap();
    let endpoint = GearmanEndpoint::new("127.0.0.1", server.port).with_tls(tls);
    let client = JobClient::new(JobClientOptions::new(vec![endpoint]));
    assert!(
        within_timeout("stranger ends", client.submit(&request))
            .await
            .is_err()
    );
    assert_eq!(server.handle.metrics().counters.submitted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_verify_the_chain_and_optionally_the_name() {
    let authority = GearmanTestCa::new();
    let server = secure_server(&authority, None).await;
    let connect = async |files: &Tls, check| {
        let tls = ClientTls::new(&tls_files(files), check).unwrap();
        let endpoint = GearmanEndpoint::new("127.0.0.1", server.port).with_tls(tls);
        AdminClient::connect(&endpoint, Duration::from_secs(30)).await
    };
    let mine = authority.sign("main");
    assert!(connect(&mine, HostCheck::ChainOnly).await.is_ok());
    assert!(
        connect(&mine, HostCheck::Name).await.is_err(),
        "the certificate is for server.example"
    );
    let other = GearmanTestCa::new();
    let mistrusting = Tls {
        ca: other.files.path().join("ca.pem"),
        ..mine
    };
    assert!(
        connect(&mistrusting, HostCheck::ChainOnly).await.is_err(),
        "the chain must be checked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_depend_on_the_certificate() {
    let authority = GearmanTestCa::new();
    let images = "image-(build|upload|delete):";
    let access = AccessList::new()
        .subject("builder", Rights::none().register(images).unwrap())
        .subject("main", Rights::none().invoke(images).unwrap());
    let server = secure_server(&authority, Some(access)).await;

    let worker = InProcessWorker::start(vec![endpoint(server.port, &authority.sign("builder"))], 1);
    let done = async |_job| Ok(bytes("done"));
    worker.handle.register("image-build:debian", done).unwrap();
    worker.handle.register("secrets", done).unwrap();

    let main = client(server.port, &authority.sign("main"));
    let job = main
        .submit(&JobRequest::new("image-build:debian", ""))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("a permitted job is done", job.wait()).await,
        JobOutcome::Complete(bytes("done"))
    );

    let refusal = |error| match error {
        ClientError::Refused { response, .. } => response.text,
        other => panic!("{other}"),
    };
    let denied = "Permission denied by ACL";
    assert_eq!(
        refusal(
            main.submit(&JobRequest::new("secrets", ""))
                .await
                .unwrap_err()
        ),
        denied
    );
    let builder = client(server.port, &authority.sign("builder"));
    assert_eq!(
        refusal(
            builder
                .submit(&JobRequest::new("image-build:debian", ""))
                .await
                .unwrap_err()
        ),
        denied
    );
    let nobody = client(server.port, &authority.sign("nobody"));
    assert_eq!(
        refusal(
            nobody
                .submit(&JobRequest::new("image-build:debian", ""))
                .await
                .unwrap_err()
        ),
        denied
    );

    let mut admin = AdminClient::connect(
        &endpoint(server.port, &authority.sign("nobody")),
        Duration::from_secs(30),
    )
    .await
    .unwrap();
    let status = admin.status().await.unwrap();
    assert!(
        status.iter().all(|function| function.function != "secrets"),
        "{status:?}"
    );
    let handle = main
        .submit_background(&JobRequest::new("image-delete:1", ""))
        .await
        .unwrap();
    assert!(
        admin.cancel_job(&handle.to_string()).await.is_err(),
        "cancelling needs the right to invoke"
    );
    assert!(
        admin.max_queue("image-delete:1", Some(3)).await.is_err(),
        "settings need the right to operate"
    );
}

#[tokio::test]
async fn a_server_without_tls_requires_loopback_and_no_rights() {
    let listen = "0.0.0.0:0".parse().unwrap();
    let error = JobServer::bind(JobServerOptions { listen, ..local() })
        .await
        .unwrap_err();
    assert!(
        matches!(error, JobServerError::PlainOffLoopback { .. }),
        "{error}"
    );
    let access = Some(AccessList::new());
    let error = JobServer::bind(JobServerOptions { access, ..local() })
        .await
        .unwrap_err();
    assert!(matches!(error, JobServerError::RightsWithoutTls), "{error}");
}
