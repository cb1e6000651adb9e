//! A machine that boots Linux, is logged in to, and goes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodeyard_driver::ErrorClass;
use nodeyard_driver_qemu::{Firmware, QemuImageChoice};
use nodeyard_model::ConnectionPort;
use nodeyard_nodescan::{NetworkScanner, ScanTarget, Scanner};
use nodeyard_testbeds::qemu_guest;

use crate::common::{PATIENCE, Yard, launch, launch_again, order, remove};

/// A yard whose machines boot the guest, and the key to log in with.
pub(crate) fn bootable() -> (Yard, PathBuf) {
    let guest = qemu_guest().unwrap();
    let mut yard = Yard::new();
    let (key, public) = make_key(yard.path());
    yard.options.cloud_images[0].choice = QemuImageChoice::Path(guest.join("root.ext4"));
    let label = &mut yard.options.pools[0].labels[0];
    label.memory = 256;
    label.disk_size = Some(1);
    label.kernel = Some(guest.join("vmlinuz"));
    label.initrd = Some(guest.join("initrd"));
    label.kernel_args = Some("console=ttyS0 panic=-1 quiet".into());
    label.authorized_keys = vec![public.into()];
    label.host_key_checking = true;
    (yard, key)
}

/// A key in a directory, and its public half.
pub(crate) fn make_key(directory: &Path) -> (PathBuf, String) {
    let key = directory.join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    (key, public.trim().to_owned())
}

pub(crate) fn ssh(key: &Path, address: &str, port: u16, command: &str) -> String {
    ssh_as("root", key, address, port, command)
}

pub(crate) fn ssh_as(user: &str, key: &Path, address: &str, port: u16, command: &str) -> String {
    let output = Command::new("ssh")
        .args(["-i".as_ref(), key.as_os_str()])
        .args(["-p", &port.to_string()])
        .args([
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ])
        .args([
            "-o",
            "BatchMode=yes",
            "-o",
            "LogLevel=ERROR",
            "-o",
            "IdentitiesOnly=yes",
        ])
        .args([&format!("{user}@{address}"), command])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {text} {errors}");
    text
}

#[tokio::test]
async fn a_guest_boots_lets_its_owner_in_and_goes() {
    let (yard, key) = bootable();
    let driver = yard.driver();
    let begin = Instant::now();
    let instance = launch(&driver, &order(7)).await.unwrap();
    eprintln!("a guest answered after {:?}", begin.elapsed());
    let Some(ConnectionPort::Number(port)) = instance.connection_port else {
        panic!("{instance:?}");
    };
    assert_eq!(instance.interface_ip.as_deref(), Some("127.0.0.1"));

    let target = ScanTarget {
        provider: "local".into(),
        address: "127.0.0.1".into(),
        port,
        connection_type: "ssh".into(),
        timeout: PATIENCE,
    };
    let scan = NetworkScanner::default().scan(&target).await.unwrap();
    assert!(
        scan.keys
            .iter()
            .any(|key| key.as_str().starts_with("ssh-ed25519 ")),
        "{scan:?}"
    );

    let script = "hostname; cat /proc/cmdline; cat /sys/block/vda/size; echo x > /root/x && sync && echo written";
    let text = tokio::task::spawn_blocking(move || ssh(&key, "127.0.0.1", port, script))
        .await
        .unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // 1 GiB in sectors, although the image is smaller.
    assert_eq!(
        lines,
        [
            "np0000000007",
            "console=ttyS0 panic=-1 quiet",
            "2097152",
            "written"
        ]
    );

    let console = std::fs::read_to_string(yard.machine_directory(&instance).join("console.log"));
    assert!(console.unwrap().contains("the guest is up"));
    let begin = Instant::now();
    remove(&driver, 7).await.unwrap();
    eprintln!("and was gone after {:?}", begin.elapsed());
    assert!(yard.processes().is_empty());
    assert!(yard.names("machines").is_empty());
}

#[tokio::test]
async fn a_firmware_boots_the_guest_and_remembers_what_is_its_own() {
    let (mut yard, key) = bootable();
    let variables = yard.path().join("variables, for all.fd");
    std::fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", &variables).unwrap();
    let before = std::fs::read(&variables).unwrap();
    let mut readonly = std::fs::metadata(&variables).unwrap().permissions();
    readonly.set_readonly(true);
    std::fs::set_permissions(&variables, readonly).unwrap();
    yard.options.firmware = Some(Firmware {
        image: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(),
        variables: Some(variables.clone()),
    });
    let driver = yard.driver();
    let begin = Instant::now();
    let instance = launch(&driver, &order(8)).await.unwrap();
    eprintln!("a guest with UEFI answered after {:?}", begin.elapsed());
    let Some(ConnectionPort::Number(port)) = instance.connection_port else {
        panic!("{instance:?}");
    };
    let script = "ls /sys/firmware";
    let text = tokio::task::spawn_blocking(move || ssh(&key, "127.0.0.1", port, script));
    let text = text.await.unwrap();
    assert!(text.lines().any(|line| line == "efi"), "{text}");

    // It has written to its own variables, and to nobody else's.
    let own = yard.machine_directory(&instance).join("variables.fd");
    let own = std::fs::read(own).unwrap();
    assert_eq!(own.len(), before.len());
    assert!(own != before, "the firmware has written nothing");
    assert!(std::fs::read(&variables).unwrap() == before);
    remove(&driver, 8).await.unwrap();
}

#[tokio::test]
async fn a_guest_that_dies_fails_its_launch_with_its_last_words() {
    let (mut yard, _) = bootable();
    let label = &mut yard.options.pools[0].labels[0];
    label.kernel_args = Some("console=ttyS0 rdinit=/bin/busybox -- poweroff -f".into());
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.class(), ErrorClass::Permanent, "{text}");
    assert!(text.contains("stopped while it booted"), "{text}");
    assert!(text.contains("reboot: Power down"), "{text}");
}

#[tokio::test]
async fn a_guest_that_never_answers_is_given_up() {
    let mut yard = Yard::with_label(|label| label.host_key_checking = true);
    yard.options.boot_timeout = Duration::from_secs(1);
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity);
    assert!(
        error.to_string().contains("did not answer on 127.0.0.1:"),
        "{error}"
    );
    // The next attempt creates another machine.
    let first = yard.processes();
    yard.options.pools[0].labels[0].host_key_checking = false;
    launch_again(&yard.driver(), 1).await.unwrap();
    let second = yard.processes();
    assert!(second.len() == 1 && second != first);
}
