//! ZooKeeper servers that are exchanged while the programs run.

use std::time::Duration;

use nodeyard_testbeds::{Proxy, ZooKeeperServer, connection};

use crate::bed::{Bed, QUICK_CLOUD, wait_until};

fn is_fulfilled(bed: &Bed, request: &str) -> bool {
    let requests = bed.rows(&["request-list"]);
    requests
        .iter()
        .any(|record| record["id"] == request && record["state"] == "fulfilled")
}

fn continues_with_other_servers(program: &str, args: &[&str]) {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let proxy = Proxy::start(zookeeper.tls_port()).unwrap();
    let bed = Bed::new();
    let text = QUICK_CLOUD.replace("PORT", &bed.free_port().to_string());
    let directly = connection(&zookeeper, Duration::from_secs(60));
    let [own, other] = [zookeeper.tls_port(), proxy.port()].map(|port| format!("port: {port}}}"));
    let through_proxy = directly.replace(&own, &other);
    let store = ["-c", "nodepool.yaml", "store"];

    bed.write("nodepool.yaml", format!("{through_proxy}{text}"));
    let mut command = bed.called(program);
    command.args(["-c", "nodepool.yaml"]).args(args);
    let mut daemon = bed.spawn("log", command);
    bed.submit_to(&store, 0, "small");
    wait_until("the first request is served", || {
        is_fulfilled(&bed, "200-0000000000")
    });

    let changed = directly.replace("zookeeper-timeout: 60", "zookeeper-timeout: 61");
    bed.write("nodepool.yaml", format!("{changed}{text}"));
    daemon.wait_for_log("configuration reloaded");
    daemon.wait_for_log("restart to apply the changes of `zookeeper-timeout`");
    proxy.refuse(true);
    bed.submit_to(&store, 1, "small");
    wait_until("the second request is served", || {
        is_fulfilled(&bed, "200-0000000001")
    });
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_launcher_continues_with_other_servers() {
    continues_with_other_servers("nodepool-launcher", &["-f"]);
}

#[test]
fn nodeyard_up_continues_with_other_servers() {
    continues_with_other_servers("nodeyard", &["up"]);
}
