//! Whole distributions: machines that continue from saved memory, and what cloud-init makes of our seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodeyard_driver::Instance;
use nodeyard_driver_qemu::{LocalHost, QemuDriver, QemuHost, QemuImageChoice};
use nodeyard_model::{ConnectionPort, Timestamp};
use nodeyard_nodescan::{NetworkScanner, ScanTarget, Scanner};
use nodeyard_testbeds::{qemu_debian, qemu_debian_with_cloud_init};

use crate::boot::{make_key, ssh_as};
use crate::common::{PATIENCE, Yard, launch, order, remove};

/// A yard whose machines boot this disk, and the key to log in with.
fn debian(disk: PathBuf) -> (Yard, PathBuf) {
    let mut yard = Yard::new();
    let (key, public) = make_key(yard.path());
    let image = &mut yard.options.cloud_images[0];
    image.choice = QemuImageChoice::Path(disk);
    image.username = Some("zuul".into());
    let label = &mut yard.options.pools[0].labels[0];
    label.memory = 512;
    label.authorized_keys = vec![public.into()];
    label.host_key_checking = true;
    (yard, key)
}

fn port(instance: &Instance) -> u16 {
    match instance.connection_port {
        Some(ConnectionPort::Number(port)) => port,
        ref other => panic!("{other:?}"),
    }
}

async fn say(key: &Path, port: u16, script: &'static str) -> Vec<String> {
    let key = key.to_owned();
    let text = tokio::task::spawn_blocking(move || ssh_as("zuul", &key, "127.0.0.1", port, script));
    text.await.unwrap().lines().map(str::to_owned).collect()
}

/// Host name, machine id, random numbers and host keys: what must be each machine's own.
async fn identity(key: &Path, port: u16) -> Vec<String> {
    let script = "hostname; cat /etc/machine-id; od -An -N16 -tx1 /dev/urandom; cat /etc/ssh/ssh_host_*_key.pub";
    let mut all = say(key, port, script).await;
    let target = ScanTarget {
        provider: "local".into(),
        address: "127.0.0.1".into(),
        port,
        connection_type: "ssh".into(),
        timeout: PATIENCE,
    };
    let scan = NetworkScanner::default().scan(&target).await.unwrap();
    all.extend(scan.keys.iter().map(|key| key.as_str().to_owned()));
    assert!(all.len() >= 7, "{all:?}");
    all
}

#[tokio::test]
async fn machines_with_the_same_memory_are_not_the_same_machine() {
    let (mut yard, key) = debian(qemu_debian().unwrap());
    yard.options.pools[0].labels[0].warm_template = true;
    let driver = yard.driver();
    let mut ports = Vec::new();
    for number in [1, 2] {
        let begin = Instant::now();
        let instance = launch(&driver, &order(number)).await.unwrap();
        eprintln!("machine {number} answered after {:?}", begin.elapsed());
        let memory = yard.machine_directory(&instance).join("memory");
        assert!(memory.exists(), "it started from the beginning");
        ports.push(port(&instance));
    }
    let (first, second) = (
        identity(&key, ports[0]).await,
        identity(&key, ports[1]).await,
    );
    assert_eq!(first[0], "np0000000001");
    assert_eq!(second[0], "np0000000002");
    for value in &first {
        assert!(!second.contains(value), "both have {value}");
    }
    // The time when its memory was saved is not the time that it is.
    let time: u64 = say(&key, ports[1], "date +%s").await[0].parse().unwrap();
    let now = nodeyard_model::now().as_secs() as u64;
    assert!(now.abs_diff(time) < 300, "{time} instead of {now}");

    // Machines need nothing of the template but what they have already.
    let much_later = Timestamp::from_secs(4e9).unwrap();
    let host = LocalHost::new(yard.shared_options());
    host.collect_garbage(much_later).await.unwrap();
    assert_eq!(yard.names("templates"), Vec::<String>::new());
    assert_eq!(
        say(
            &key,
            ports[0],
            "sudo dd if=/dev/vda2 of=/dev/null bs=1M count=300 2>/dev/null && hostname"
        )
        .await,
        ["np0000000001"]
    );
    for number in [1, 2] {
        remove(&driver, number).await.unwrap();
    }
    assert!(yard.processes().is_empty());
}

/// An image that knows nothing of templates is booted, and not tried again for each machine.
#[tokio::test]
async fn an_image_without_templates_starts_from_the_beginning() {
    let mut yard = Yard::with_label(|label| label.warm_template = true);
    yard.options.boot_timeout = Duration::from_secs(2);
    let driver: QemuDriver = yard.driver();
    for number in [1, 2] {
        let begin = Instant::now();
        let instance = launch(&driver, &order(number)).await.unwrap();
        assert!(!yard.machine_directory(&instance).join("memory").exists());
        eprintln!("machine {number} ran after {:?}", begin.elapsed());
    }
    assert_eq!(yard.processes().len(), 2, "the template has ended");
    let left: Vec<String> = yard.names("templates");
    assert!(left.iter().all(|name| name.ends_with(".lock")), "{left:?}");
}

#[tokio::test]
async fn cloud_init_does_what_the_seed_says() {
    let (mut yard, key) = debian(qemu_debian_with_cloud_init().unwrap());
    let label = &mut yard.options.pools[0].labels[0];
    label.userdata = Some("#cloud-config\nuser: zuul\nruncmd: [[touch, /run/was-here]]\n".into());
    let driver = yard.driver();
    let begin = Instant::now();
    let instance = launch(&driver, &order(9)).await.unwrap();
    eprintln!(
        "a guest with cloud-init answered after {:?}",
        begin.elapsed()
    );
    let script = "cloud-init status --wait > /dev/null; hostname; cat /run/cloud-init/result.json; ls /run/was-here";
    let said = say(&key, port(&instance), script).await;
    assert_eq!(said[0], "np0000000009");
    assert_eq!(said.last().unwrap(), "/run/was-here", "{said:?}");
    let all = said.join("\n");
    assert!(all.contains("DataSourceNoCloud"), "{all}");
    assert!(fs::exists(yard.machine_directory(&instance).join("seed.img")).unwrap());
    remove(&driver, 9).await.unwrap();
}
