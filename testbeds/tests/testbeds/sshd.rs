//! The SSH server of the test beds, with OpenSSH's own client.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nodeyard_testbeds::{Sshd, skipped};

const PATIENCE: Duration = Duration::from_secs(300);

/// With a list of known hosts that has exactly what the server says of itself.
fn ssh(sshd: &Sshd, directory: &Path, command: &str) -> Output {
    let port = sshd.port();
    let known_hosts: String = sshd
        .host_keys()
        .unwrap()
        .iter()
        .map(|key| format!("[127.0.0.1]:{port} {key}\n"))
        .collect();
    let file = directory.join("known_hosts");
    fs::write(&file, known_hosts).unwrap();
    Command::new("ssh")
        .args(["-F", "none", "-o", "BatchMode=yes"])
        .args(["-o", "StrictHostKeyChecking=yes", "-o"])
        .arg(format!("UserKnownHostsFile={}", file.display()))
        .arg("-i")
        .arg(sshd.client_key())
        .args(["-p", &port.to_string(), "-l", sshd.username()])
        .args(["127.0.0.1", command])
        .output()
        .unwrap()
}

#[test]
fn a_login_finds_a_host_of_its_own() {
    let sshd = Sshd::start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let output = ssh(&sshd, directory.path(), "hostname; id -un; ls -A ~");
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = format!("{}\n{}\n", sshd.hostname(), sshd.username());
    assert_eq!(text, expected, "{:?}", output.stderr);
    assert_eq!(sshd.host_keys().unwrap().len(), 3);
}

#[test]
fn what_root_leaves_behind_ends_with_the_server() {
    let sshd = Sshd::start().unwrap();
    if sshd.username() != "root" {
        skipped("a namespace for what logins leave behind", "run it as root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // The argument makes it recognisable in the table of processes, where its id is another one than on the host.
    let mark = format!("left-behind-{}", sshd.port());
    let command = format!("setsid sh -c 'sleep 1000; exit' {mark} < /dev/null > /dev/null 2>&1 &");
    assert!(ssh(&sshd, directory.path(), &command).status.success());
    wait_until("it runs", || is_running(&mark));
    drop(sshd);
    wait_until("it has ended", || !is_running(&mark));
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn is_running(mark: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        command.ends_with(format!("{mark}\0").as_bytes())
    })
}
