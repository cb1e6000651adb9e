//! Commands that ask a cloud themselves, and what is measured of it. The cloud is a process of its own, as it would be
//! in reality.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, cloud_call, get, wait_until};

const CONFIG: &str = "
state-dir: state
webapp: {port: PORT, listen_address: 127.0.0.1}
labels: [{name: small}]
tenant-resource-limits: [{tenant-name: acme, max-servers: 3}]
providers:
  - name: cloud
    driver: fake
    cloud: fake
    cloud-images: [{name: image, image-name: Fake Precise}]
    pools:
      - name: main
        max-servers: 5
        labels: [{name: small, cloud-image: image, min-ram: 1}]
  - {name: elsewhere, driver: openstack, cloud: real, pools: []}
";

struct Cloud {
    bed: Bed,
    address: String,
    port: u16,
    _simulation: Daemon,
}

impl Cloud {
    fn start() -> Self {
        let mut bed = Bed::new();
        let port = bed.free_port();
        bed.write("nodepool.yaml", CONFIG.replace("PORT", &port.to_string()));
        let (simulation, address) = bed.simulate();
        Self {
            bed,
            address,
            port,
            _simulation: simulation,
        }
    }

    fn call(&self, method: &str, arguments: &Value) -> Value {
        cloud_call(&self.address, method, arguments)
    }

    fn has_ready_node(&self) -> bool {
        let nodes = self.bed.rows(&["list"]);
        nodes.iter().any(|node| node["state"] == "ready")
    }
}

#[test]
fn a_node_is_deleted_now_without_any_launcher() {
    let cloud = Cloud::start();
    let mut daemon = cloud.bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    cloud.bed.submit(0, "small");
    wait_until("a node is ready", || cloud.has_ready_node());
    assert_eq!(daemon.terminate(), 0);
    let servers = || {
        cloud
            .call("list_servers", &json!({}))
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(servers(), 1);
    let left = cloud
        .bed
        .nodepool(&["delete", "--now", "0000000000"])
        .succeeded();
    assert_eq!(left.json(), json!([]));
    assert_eq!(servers(), 0);
    let again = cloud
        .bed
        .nodepool(&["delete", "--now", "0000000000"])
        .succeeded();
    assert_eq!(again.out, "Node id 0000000000 not found\n");
}

#[test]
fn images_that_no_record_knows_are_listed() {
    let cloud = Cloud::start();
    let _daemon = cloud.bed.up(&["-c", "nodepool.yaml"]);
    let image = cloud.call(
        "create_image",
        &json!({"name": "left-over", "filename": "x", "nodepool_build_id": "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b"}),
    );
    let foreign = json!({"name": "somebody's", "filename": "x"});
    cloud.call("create_image", &foreign);
    let expected = json!([{"provider": "cloud", "name": "left-over", "image_id": image["id"]}]);
    for args in [&["alien-image-list"][..], &["alien-image-list", "cloud"]] {
        assert_eq!(cloud.bed.nodepool(args).succeeded().json(), expected);
    }
    cloud
        .bed
        .nodepool(&["alien-image-list", "other"])
        .failed("no provider other");
    // No clouds.yaml defines its cloud: an error for this provider alone, ignored in a list of all.
    cloud
        .bed
        .nodepool(&["alien-image-list", "elsewhere"])
        .failed("failed to start the driver of elsewhere");
}

#[test]
fn a_provider_that_fails_does_not_fail_the_list_of_alien_images() {
    let cloud = Cloud::start();
    let unreachable = "  - {name: unreachable, driver: openstack, cloud: closed, pools: []}\n";
    let config = CONFIG.replace("PORT", &cloud.port.to_string()) + unreachable;
    cloud.bed.write("nodepool.yaml", config);
    let port = nodeyard_testbeds::free_port().unwrap();
    let closed = json!({"clouds": {"closed": {
        "auth": {
            "auth_url": format!("http://127.0.0.1:{port}/v3"), "username": "u", "password": "p",
            "project_name": "p", "user_domain_name": "d", "project_domain_name": "d",
        },
        "region_name": "r",
    }}});
    cloud.bed.write("clouds.yaml", closed.to_string());
    let _daemon = cloud.bed.up(&["-c", "nodepool.yaml"]);
    let image = json!({"name": "left-over", "filename": "x", "nodepool_build_id": "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b"});
    let image = cloud.call("create_image", &image);
    let listed = cloud.bed.nodepool(&["alien-image-list"]).succeeded();
    let expected = json!([{"provider": "cloud", "name": "left-over", "image_id": image["id"]}]);
    assert_eq!(listed.json(), expected);
    let text = "failed to list the images of a provider";
    assert_eq!(listed.err.matches(text).count(), 2, "{listed:#?}");
    cloud
        .bed
        .nodepool(&["alien-image-list", "unreachable"])
        .failed("failed to list the images of unreachable");
}

#[test]
fn operations_are_measured() {
    let ear = UdpSocket::bind("127.0.0.1:0").unwrap();
    ear.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut cloud = Cloud::start();
    cloud.bed.set("STATSD_HOST", "127.0.0.1");
    let port = ear.local_addr().unwrap().port();
    cloud.bed.set("STATSD_PORT", port.to_string());
    let daemon = cloud.bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("started provider");
    cloud.bed.submit(0, "small");
    cloud.bed.submit(1, "nobody-has-this");

    let mut missing = vec![
        "nodepool.provider.cloud.max_servers:5|g",
        "nodepool.tenant_limits.acme.instances:3|g",
        "nodepool.launch.ready:1|c",
        "nodepool.launch.requestor.test.ready:1|c",
        ".zk.client.connection_queue:0|g",
        ".zk.node_cache.event_queue:0|g",
        ".zk.request_cache.playback_queue:0|g",
    ];
    let mut datagram = vec![0; 65_536];
    while !missing.is_empty() {
        let length = ear
            .recv(&mut datagram)
            .unwrap_or_else(|_| panic!("{missing:?} was not sent"));
        let text = String::from_utf8_lossy(&datagram[..length]).into_owned();
        missing.retain(|line| !text.lines().any(|sent| sent.ends_with(line)));
    }
    let page = || get(cloud.port, "/metrics").1;
    for line in [
        "nodeyard_request_wait_seconds_count{provider=\"cloud\"} 1",
        "nodeyard_request_fulfil_seconds_count{provider=\"cloud\"} 1",
        "nodeyard_requests_failed_total 1",
        "nodeyard_pool_limit{provider=\"cloud\",pool=\"main\",resource=\"instances\"} 5",
        "nodeyard_tenant_limit{tenant=\"acme\",resource=\"instances\"} 3",
    ] {
        wait_until(line, || page().contains(line));
    }
    // Nothing is counted by request or node.
    assert!(!page().contains("200-0000000000"));
}
