//! What depends on the host: accelerators, limits, the seed that a guest reads.

use std::fs;
use std::process::Command;

use nodeyard_config::Accelerator;
use nodeyard_driver::Machines;
use nodeyard_model::ResourceName;
use nodeyard_testbeds::{executable, qemu_guest};

use crate::common::{Yard, launch, order};

/// Whatever KVM is worth here: a machine comes up, and how it was decided is kept and not decided again.
#[tokio::test]
async fn the_accelerator_is_tried_out_once() {
    let yard = Yard::with(|options| options.accelerator = Accelerator::Auto);
    launch(&yard.driver(), &order(1)).await.unwrap();
    let file = yard.options.directory.join("accelerator.json");
    let trial = fs::read_to_string(&file).unwrap();
    eprintln!("KVM was tried out: {trial}");
    let made = fs::metadata(&file).unwrap().modified().unwrap();
    launch(&yard.driver(), &order(2)).await.unwrap();
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), made);
    // Another host, for all that the file says.
    fs::write(
        &file,
        trial.replace("circumstances\": \"", "circumstances\": \"another "),
    )
    .unwrap();
    launch(&yard.driver(), &order(3)).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), trial);
    let text = fs::read_to_string(&file).unwrap();
    let works = text.contains("\"works\": true");
    for pid in yard.processes() {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert_eq!(line.contains("-accel\0kvm\0"), works, "{line}");
    }
}

/// Simulates a host on which KVM works: a device that opens, and a QEMU that emulates whatever it is told. So both
/// guests of trials are seen to work, and that the result decides.
#[tokio::test]
async fn a_guest_that_runs_is_believed() {
    const EMULATE: &str = r#"#!/bin/sh
        for argument; do
            shift
            case "$argument" in
                kvm) argument=tcg ;;
                host) argument=max ;;
            esac
            set -- "$@" "$argument"
        done
        exec qemu-system-x86_64 "$@"
    "#;
    let kernel = qemu_guest().unwrap().join("vmlinuz");
    for kernel in [None, Some(kernel)] {
        let mut yard = Yard::with(|options| options.accelerator = Accelerator::Auto);
        let script = yard.path().join("emulate");
        executable(&script, EMULATE).unwrap();
        yard.options.binary = script.to_str().unwrap().into();
        yard.options.kvm = script;
        let label = &mut yard.options.pools[0].labels[0];
        label.memory = 256;
        label.kernel = kernel;
        launch(&yard.driver(), &order(1)).await.unwrap();
        let trial = fs::read_to_string(yard.options.directory.join("accelerator.json")).unwrap();
        assert!(trial.contains("\"works\": true"), "{trial}");
    }
}

#[tokio::test]
async fn limits_are_those_of_the_host() {
    let yard = Yard::new();
    let limits = yard.driver().limits().await.unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(
        limits.get(&ResourceName::CORES),
        Some(i64::try_from(cores).unwrap().into())
    );
    assert!(limits.get(&ResourceName::RAM).unwrap() > 64.into());
    let yard = Yard::with(|options| options.pools[0].max_cores = Some(1000));
    let limits = yard.driver().limits().await.unwrap();
    assert_eq!(limits.get(&ResourceName::CORES), Some(1000.into()));
}

/// With names that cloud-init looks for, seen by a program that is not ours.
#[tokio::test]
async fn the_seed_is_a_file_system_that_others_can_read() {
    let yard = Yard::with_label(|label| {
        label.authorized_keys = vec!["ssh-ed25519 AAAA one".into(), "ssh-ed25519 BBBB two".into()];
        label.userdata = Some("#cloud-config\npackages: [git]\n".into());
    });
    let instance = launch(&yard.driver(), &order(1)).await.unwrap();
    let seed = yard.machine_directory(&instance).join("seed.img");
    let type_and_label = Command::new("/sbin/blkid")
        .args(["-p", "-o", "export"])
        .arg(&seed)
        .output()
        .unwrap();
    let text = String::from_utf8(type_and_label.stdout).unwrap();
    assert!(
        text.contains("TYPE=vfat") && text.contains("LABEL=CIDATA"),
        "{text}"
    );
    let bytes = fs::read(&seed).unwrap();
    let has = |text: &str| {
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    assert!(has(r#""local-hostname":"np0000000001""#));
    assert!(has("#cloud-config\npackages: [git]\n"));
    assert!(has("ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n"));
}
