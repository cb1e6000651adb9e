//! Lives of servers: quota, floating IPs, and images that are found by filters.

use nodeyard_testbeds::openstack::Service;
use serde_json::{Value, json};

use super::bed::{Configuration, Yard};
use crate::bed::{request, take, wait_until};

const BY_NAME: Configuration = Configuration {
    provider: "    cloud-images: [{name: disk, username: zuul}]",
    pool: "        auto-floating-ip: false",
    image: "cloud-image: disk",
};

#[test]
fn the_newest_image_that_meets_the_filter_is_booted() {
    let Some(mut yard) = Yard::new("filter") else {
        return;
    };
    let make = |name: &str, version: &str| {
        let properties = json!({"os_version": version, "tags": ["ci"]});
        yard.project.create_image(name, properties).unwrap()
    };
    let first = make("disk-1", "12");
    make("other-1", "12");
    make("disk-0", "11");
    yard.launch(
        &Configuration {
            provider: "    cloud-images:
      - name: disk
        username: zuul
        image-filters:
          - {name: name, values: ['disk-*']}
          - {name: os_version, values: ['12', '13']}
          - {name: tag, values: [ci]}",
            ..BY_NAME
        }
        .text(),
    );
    let (taken, node) = yard.take_one("small");
    assert_eq!(node["username"], "zuul");
    let server = yard.server(&node);
    assert_eq!(server["image"]["id"], *first);
    yard.give_back(&taken, &node["id"]);

    let second = {
        let properties = json!({"os_version": "13", "tags": ["ci"]});
        yard.project.create_image("disk-2", properties).unwrap()
    };
    // The launcher may know the list of images for a while.
    wait_until("the newer image is booted", || {
        let (taken, node) = yard.take_one("small");
        let image = yard.server(&node)["image"]["id"].clone();
        yard.give_back(&taken, &node["id"]);
        image == *second
    });
    yard.wait_until_empty();
}

#[test]
fn over_quota_a_request_waits_and_then_is_served() {
    let Some(mut yard) = Yard::new("quota") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    yard.project.set_quota(&[("instances", 2)]).unwrap();
    // Somebody else has one of the two.
    let images = yard.project.images().unwrap();
    let foreign = foreign_server(&yard, &images[0]["id"], &json!({}));
    yard.launch(&BY_NAME.text());
    let (first, node) = yard.take_one("small");
    let second = yard.zuul.submit(&["small"]).unwrap();
    let third = yard.zuul.submit(&["small"]).unwrap();

    // Nothing changes until there is room: the launcher has looked at the quota since.
    yard.gateway.reset_counts();
    wait_until("the launcher has looked again", || {
        let calls = yard.gateway.counts();
        calls.get("compute GET /v2.1/limits").copied() >= Some(2)
            || calls.values().sum::<usize>() >= 4
    });
    for waiting in [&second, &third] {
        let state = request(&yard.zuul, waiting).unwrap()["state"].clone();
        assert!(state == "requested" || state == "pending", "{state}");
    }
    yard.zuul.give_back(&first).unwrap();
    let path = format!("/servers/{}", foreign.as_str().unwrap());
    let member = yard.project.member();
    member.delete(Service::Compute, &path).unwrap();
    for waiting in [&second, &third] {
        let nodes = take(&yard.zuul, waiting);
        assert_ne!(nodes[0]["id"], node["id"]);
    }
    for waiting in [&second, &third] {
        yard.zuul.give_back(waiting).unwrap();
    }
    yard.wait_until_empty();
}

#[test]
fn a_label_heals_when_its_flavor_comes() {
    let Some(mut yard) = Yard::new("healed") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    let name = yard.project.name().to_owned();
    let text = BY_NAME.text();
    yard.launch(&text.replace("flavor-name: tiny", &format!("flavor-name: {name}")));
    let early = yard.zuul.submit(&["small"]).unwrap();
    assert_eq!(yard.zuul.wait(&early).unwrap(), "failed");
    let lack = format!("the cloud has no flavor \"{name}\"");
    assert!(yard.launcher_log().replace('\\', "").contains(&lack));
    yard.project.create_flavor().unwrap();
    wait_until("the launcher has noticed", || {
        yard.launcher_log().contains("broken label works again")
    });
    let (taken, node) = yard.take_one("small");
    yard.give_back(&taken, &node["id"]);
}

#[test]
fn a_floating_ip_comes_and_goes_with_its_server() {
    let Some(mut yard) = Yard::new("address") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    yard.project.connect_outside().unwrap();
    yard.launch(
        &Configuration {
            pool: "        auto-floating-ip: true",
            ..BY_NAME
        }
        .text(),
    );
    let (taken, node) = yard.take_one("small");
    let addresses = yard.project.floating_ips().unwrap();
    assert_eq!(addresses.len(), 1);
    assert_eq!(node["public_ipv4"], addresses[0]["floating_ip_address"]);
    assert_eq!(node["interface_ip"], addresses[0]["floating_ip_address"]);
    assert_eq!(node["private_ipv4"], addresses[0]["fixed_ip_address"]);
    yard.give_back(&taken, &node["id"]);
    yard.wait_until_empty();
}

/// A server that no record knows.
pub(super) fn foreign_server(yard: &Yard, image: &Value, metadata: &Value) -> Value {
    let member = yard.project.member();
    let flavors = member
        .list(Service::Compute, "/flavors", "flavors")
        .unwrap();
    let tiny = flavors.iter().find(|flavor| flavor["name"] == "tiny");
    let body = json!({"server": {
        "name": "somebody", "imageRef": image, "flavorRef": tiny.unwrap()["id"],
        "networks": [{"uuid": yard.project.network()}], "metadata": metadata,
    }});
    let made = member.post(Service::Compute, "/servers", &body).unwrap();
    made["server"]["id"].clone()
}
