//! [`NetworkScanner`] against an OpenSSH server with several host keys.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nodeyard_nodescan::{NetworkScanner, Scan, ScanTarget, Scanner};
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

const TIMEOUT: Duration = Duration::from_secs(60);

struct SshServer {
    _child: Child,
    _directory: TempDir,
    port: u16,
    /// `<type> <base64>` of each public key.
    keys: Vec<String>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

async fn make_key(directory: &Path, kind: &str, bits: &str) -> String {
    let file = directory.join(format!("key_{kind}_{bits}"));
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-N", "", "-C", "a comment", "-t", kind]);
    if !bits.is_empty() {
        keygen.args(["-b", bits]);
    }
    assert!(
        keygen
            .arg("-f")
            .arg(&file)
            .status()
            .await
            .unwrap()
            .success()
    );
    std::fs::read_to_string(file.with_extension("pub")).unwrap()
}

/// Starts Debian's sshd, which is stopped when dropped.
async fn start(kinds: &[(&str, &str)]) -> SshServer {
    let directory = tempfile::tempdir().unwrap();
    let mut keys = Vec::new();
    let mut config = "PidFile none\nUsePAM no\nStrictModes no\nMaxStartups 100\n".to_owned();
    for (kind, bits) in kinds {
        let public = make_key(directory.path(), kind, bits).await;
        let mut parts = public.split_whitespace();
        keys.push(format!(
            "{} {}",
            parts.next().unwrap(),
            parts.next().unwrap()
        ));
        let file = directory.path().join(format!("key_{kind}_{bits}"));
        config.push_str(&format!("HostKey {}\n", file.display()));
    }
    let file = directory.path().join("sshd_config");
    std::fs::write(&file, config).unwrap();
    // sshd requires this directory.
    std::fs::create_dir_all("/run/sshd").unwrap();
    // Another process may take the port before sshd starts.
    for _ in 0..10 {
        let port = free_port();
        let mut child = Command::new("/usr/sbin/sshd")
            .args([
                "-D",
                "-e",
                "-o",
                &format!("ListenAddress=127.0.0.1:{port}"),
                "-f",
            ])
            .arg(&file)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("an OpenSSH server is installed");
        while child.try_wait().unwrap().is_none() {
            if NetworkScanner::default()
                .is_reachable("127.0.0.1", port, TIMEOUT)
                .await
            {
                return SshServer {
                    _child: child,
                    _directory: directory,
                    port,
                    keys,
                };
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("the OpenSSH server does not start");
}

/// Reserves a port without listening on it.
fn silent_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn target(port: u16, connection_type: &str, timeout: Duration) -> ScanTarget {
    ScanTarget {
        provider: "lab".into(),
        address: "127.0.0.1".into(),
        port,
        connection_type: connection_type.into(),
        timeout,
    }
}

fn texts(scan: &Scan) -> Vec<String> {
    scan.keys.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn all_types_of_host_keys_are_found() {
    let sshd = start(&[
        ("ed25519", ""),
        ("ecdsa", "256"),
        ("ecdsa", "384"),
        ("ecdsa", "521"),
        ("rsa", "2048"),
    ])
    .await;
    let scanner = NetworkScanner::default();
    let scan = scanner
        .scan(&target(sshd.port, "ssh", TIMEOUT))
        .await
        .unwrap();
    assert_eq!(texts(&scan), sshd.keys);
    let scan = scanner
        .scan(&target(sshd.port, "network_cli", TIMEOUT))
        .await
        .unwrap();
    assert_eq!(texts(&scan), sshd.keys);
}

#[tokio::test]
async fn missing_key_types_are_skipped() {
    let sshd = start(&[("ecdsa", "384"), ("rsa", "3072")]).await;
    let scan = NetworkScanner::default()
        .scan(&target(sshd.port, "ssh", TIMEOUT))
        .await
        .unwrap();
    assert_eq!(texts(&scan), sshd.keys);
}

#[tokio::test]
async fn the_scan_waits_for_a_machine_that_is_still_booting() {
    let (socket, port) = silent_port();
    let scanner = NetworkScanner::default();
    let target = target(port, "winrm", TIMEOUT);
    let scan = scanner.scan(&target);
    tokio::pin!(scan);
    assert!(
        tokio::time::timeout(Duration::from_millis(400), &mut scan)
            .await
            .is_err()
    );
    let _listener = socket.listen(1).unwrap();
    assert_eq!(scan.await.unwrap(), Scan::default());
}

#[tokio::test]
async fn a_server_without_ssh_is_retried_until_the_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Closes the connection immediately.
            drop(stream);
        }
    });
    let error = NetworkScanner::default()
        .scan(&target(port, "ssh", Duration::from_secs(1)))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&format!(
        "127.0.0.1 port {port} was not reachable within 1 s"
    )));
}

#[tokio::test]
async fn an_unreachable_machine_is_an_error_with_the_reason() {
    let (_socket, port) = silent_port();
    let mut limit = Duration::from_millis(600);
    let error = loop {
        let scan = NetworkScanner::default()
            .scan(&target(port, "ssh", limit))
            .await;
        let error = scan.unwrap_err().to_string();
        // On a busy host there may not have been time for an attempt.
        if !error.contains("not attempted") || limit > TIMEOUT {
            break error;
        }
        limit *= 2;
    };
    assert!(error.to_lowercase().contains("refused"), "{error}");
}

#[tokio::test]
async fn simulated_machines_are_not_contacted() {
    let scanner = NetworkScanner::default();
    let mut simulated = target(1, "ssh", Duration::ZERO);
    simulated.address = "fake_v6".into();
    let scan = scanner.scan(&simulated).await.unwrap();
    assert_eq!(texts(&scan), ["ssh-rsa FAKEKEY"]);
    simulated.connection_type = "winrm".into();
    assert_eq!(scanner.scan(&simulated).await.unwrap(), Scan::default());
}

#[tokio::test]
async fn reachability() {
    let (socket, port) = silent_port();
    assert!(
        !NetworkScanner::default()
            .is_reachable("127.0.0.1", port, TIMEOUT)
            .await
    );
    let _listener = socket.listen(1).unwrap();
    assert!(
        NetworkScanner::default()
            .is_reachable("127.0.0.1", port, TIMEOUT)
            .await
    );
}

/// Accepts connections and says nothing.
fn mute_port() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn a_booting_machine_does_not_delay_other_scans() {
    let sshd = start(&[("ed25519", "")]).await;
    let scanner = NetworkScanner::new(1);
    let (_socket, booting) = silent_port();
    let booting = target(booting, "ssh", Duration::from_secs(3600));
    let answering = target(sshd.port, "ssh", TIMEOUT);
    tokio::select! {
        biased;
        end = scanner.scan(&booting) => panic!("nothing answers there: {end:?}"),
        scan = scanner.scan(&answering) => assert_eq!(texts(&scan.unwrap()), sshd.keys),
    }
}

#[tokio::test]
async fn scans_of_one_provider_do_not_delay_those_of_another() {
    let sshd = start(&[("ed25519", "")]).await;
    let scanner = NetworkScanner::new(1);
    let (_listener, mute) = mute_port();
    let mute = target(mute, "ssh", Duration::from_secs(3600));
    let mut elsewhere = target(sshd.port, "ssh", TIMEOUT);
    elsewhere.provider = "elsewhere".into();
    tokio::select! {
        biased;
        end = scanner.scan(&mute) => panic!("nothing answers there: {end:?}"),
        scan = scanner.scan(&elsewhere) => assert_eq!(texts(&scan.unwrap()), sshd.keys),
    }
}

#[tokio::test]
async fn waiting_for_other_scans_counts_towards_the_timeout() {
    let scanner = NetworkScanner::new(0);
    let (_listener, mute) = mute_port();
    let error = scanner
        .scan(&target(mute, "ssh", Duration::from_secs(1)))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("too many scans were running"),
        "{error}"
    );
}
