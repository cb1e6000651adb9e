use std::fs;
use std::time::Duration;

use nodeyard_store::zookeeper::{Host, Options, ZooKeeper, ZooKeeperTlsFiles};
use nodeyard_store::{CreateMode, Error, Tree, TreePath};
use nodeyard_testbeds::{Proxy, ServerOptions, ZooKeeperServer};

use super::support::*;

fn tls(server: &ZooKeeperServer) -> ZooKeeperTlsFiles {
    let certificates = server.certificates();
    ZooKeeperTlsFiles {
        ca: certificates.ca.clone(),
        cert: certificates.client.cert.clone(),
        key: certificates.client.key.clone(),
        verify_hostname: false,
    }
}

fn secured(server: &ZooKeeperServer, tls: ZooKeeperTlsFiles) -> Options {
    Options {
        tls: Some(tls),
        ..options(server.tls_port())
    }
}

/// The error of a connection that must not come about, with its causes.
async fn refusal(options: Options) -> String {
    let client = ZooKeeper::connect(options);
    let error = within("a failed attempt", async {
        loop {
            let error = client
                .connected(Duration::from_millis(200))
                .await
                .expect_err("the connection must not work");
            if !chain(&error).contains("elapsed") {
                break error;
            }
        }
    });
    chain(&error.await)
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[tokio::test]
async fn everything_works_over_tls() {
    let server = shared_server();
    let mut by_name = secured(server, tls(server));
    by_name.hosts = vec![Host::Tcp {
        name: "localhost".to_owned(),
        port: server.tls_port(),
    }];
    if let Some(tls) = &mut by_name.tls {
        tls.verify_hostname = true;
    }
    for options in [secured(server, tls(server)), by_name] {
        let root = connect(options).await;
        let tree = root.with_chroot(&fresh_chroot(&*root).await);
        let mut watcher = tree.watch(&TreePath::root()).await.unwrap();
        let large = data("x".repeat(900_000));
        let a = path("/a");
        tree.create(&a, large.clone(), CreateMode::Ephemeral)
            .await
            .unwrap();
        assert_eq!(tree.get(&a).await.unwrap().data, large);
        until_event(&mut watcher, &nodeyard_store::WatchEvent::Created(a)).await;
        root.close().await;
    }
}

#[tokio::test]
async fn a_server_of_a_foreign_authority_is_refused() {
    let server = shared_server();
    let mut tls = tls(server);
    tls.ca = server.certificates().foreign_ca.clone();
    let text = refusal(secured(server, tls)).await;
    assert!(
        text.contains("TLS handshake") && text.contains("UnknownIssuer"),
        "{text}"
    );
}

#[tokio::test]
async fn a_client_of_a_foreign_authority_is_told_so() {
    let server = shared_server();
    let mut tls = tls(server);
    tls.cert = server.certificates().foreign_client.cert.clone();
    tls.key = server.certificates().foreign_client.key.clone();
    let text = refusal(secured(server, tls)).await;
    assert!(text.to_lowercase().contains("certificate"), "{text}");
}

#[tokio::test]
async fn a_wrong_name_is_taken_unless_names_are_verified() {
    let server = blocking(|| ZooKeeperServer::start_with(&ServerOptions { misnamed: true }))
        .await
        .unwrap();
    let client = connect(secured(&server, tls(&server))).await;
    client.sync().await.unwrap();

    let verified = ZooKeeperTlsFiles {
        verify_hostname: true,
        ..tls(&server)
    };
    let text = refusal(secured(&server, verified)).await;
    assert!(text.contains("not valid for"), "{text}");
}

#[tokio::test]
async fn errors_name_the_file() {
    let server = shared_server();
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.pem");
    let empty = directory.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let good = tls(server);
    for (tls, file) in [
        (
            ZooKeeperTlsFiles {
                ca: missing.clone(),
                ..good.clone()
            },
            &missing,
        ),
        (
            ZooKeeperTlsFiles {
                cert: missing.clone(),
                ..good.clone()
            },
            &missing,
        ),
        (
            ZooKeeperTlsFiles {
                key: missing.clone(),
                ..good.clone()
            },
            &missing,
        ),
        (
            ZooKeeperTlsFiles {
                ca: empty.clone(),
                ..good.clone()
            },
            &empty,
        ),
        (
            ZooKeeperTlsFiles {
                cert: empty.clone(),
                ..good.clone()
            },
            &empty,
        ),
        (
            ZooKeeperTlsFiles {
                key: empty.clone(),
                ..good.clone()
            },
            &empty,
        ),
    ] {
        let text = tls.load().unwrap_err().to_string();
        assert!(text.contains(&file.display().to_string()), "{text}");
    }
    let mixed = ZooKeeperTlsFiles {
        key: server.certificates().foreign_client.key.clone(),
        ..good
    };
    let text = mixed.load().unwrap_err().to_string();
    assert!(text.contains("do not match"), "{text}");

    let unusable = ZooKeeperTlsFiles {
        ca: missing,
        ..mixed
    };
    let text = refusal(secured(server, unusable)).await;
    assert!(text.contains("missing.pem"), "{text}");
}

#[tokio::test]
async fn plain_and_tls_ports_are_told_apart() {
    let server = shared_server();
    let text = refusal(options(server.tls_port())).await;
    assert!(text.contains(&server.tls_port().to_string()), "{text}");
    let mut wrong = secured(server, tls(server));
    wrong.hosts = vec![host(server.port())];
    let text = refusal(wrong).await;
    assert!(text.contains("TLS handshake"), "{text}");
}

/// Files are read at every connection: first they are wrong, then replaced while the client runs.
#[tokio::test]
async fn replaced_certificates_are_used_by_the_next_connection() {
    let server = shared_server();
    let certificates = server.certificates();
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("cert"), directory.path().join("key"));
    let install = |identity: &nodeyard_testbeds::Identity| {
        fs::copy(&identity.cert, &cert).unwrap();
        fs::copy(&identity.key, &key).unwrap();
    };
    install(&certificates.client);
    let proxy = Proxy::start(server.tls_port()).unwrap();
    let mut options = secured(
        server,
        ZooKeeperTlsFiles {
            cert: cert.clone(),
            key: key.clone(),
            ..tls(server)
        },
    );
    options.hosts = vec![host(proxy.port())];
    options.session_timeout = LONG_SESSION;
    let client = connect(options).await;
    let session = session_id(&*client).await;

    install(&certificates.foreign_client);
    proxy.drop_connections();
    state(&*client, |state| {
        matches!(state, nodeyard_store::Session::Suspended(_))
    })
    .await;
    let before = proxy.accepted();
    within("refused attempts", async {
        while proxy.accepted() < before + 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(matches!(
        client.connected(Duration::ZERO).await,
        Err(Error::Backend { .. })
    ));
    install(&certificates.client);
    assert_eq!(session_id(&*client).await, session);
}
