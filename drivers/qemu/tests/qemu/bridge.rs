//! Guests on a bridge. The test makes a network of its own, so that nothing of this host changes; that needs root.

use std::process::Command;

use nodeyard_driver_qemu::GuestNetwork;
use nodeyard_model::ConnectionPort;
use nodeyard_testbeds::skipped;

use crate::boot::{bootable, ssh};
use crate::common::{launch, order, remove};

/// A bridge, permission to use it, and a DHCP server; then what follows.
const NETWORK: &str = r#"
    set -e
    cp -a /etc "$1/etc"
    mkdir -p "$1/etc/qemu"
    echo allow nodeyard-test > "$1/etc/qemu/bridge.conf"
    mount --bind "$1/etc" /etc
    ip link set lo up
    ip link add nodeyard-test type bridge
    ip addr add 10.77.0.1/24 dev nodeyard-test
    ip link set nodeyard-test up
    /usr/sbin/dnsmasq --conf-file=/dev/null --port=0 --interface=nodeyard-test --bind-interfaces --user=root \
        --dhcp-range=10.77.0.10,10.77.0.99 --dhcp-leasefile="$1/leases" --pid-file="$1/dnsmasq.pid"
    shift
    exec "$@"
"#;

#[test]
fn guests_on_a_bridge_have_addresses_of_their_own() {
    if !rustix::process::geteuid().is_root() {
        skipped("a bridge to test on cannot be made", "run it as root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["sh", "-c", NETWORK, "sh"])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "bridge::inside_a_network_of_its_own",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{errors}"
    );
}

#[tokio::test]
#[ignore = "runs in the network that the test above makes"]
async fn inside_a_network_of_its_own() {
    let (mut yard, key) = bootable();
    yard.options.network = GuestNetwork::Bridge {
        name: "nodeyard-test".into(),
    };
    let driver = yard.driver();
    let instance = launch(&driver, &order(1)).await.unwrap();
    assert_eq!(instance.connection_port, Some(ConnectionPort::Number(22)));
    let address = instance.interface_ip.unwrap();
    assert!(address.starts_with("10.77.0."), "{address}");
    let name = tokio::task::spawn_blocking(move || ssh(&key, &address, 22, "hostname"));
    assert_eq!(name.await.unwrap(), "np0000000001");
    remove(&driver, 1).await.unwrap();
    assert!(yard.processes().is_empty());
}
