//! What nobody knows any more goes, of every kind there is; what others made stays.

use std::collections::BTreeSet;

use nodeyard_testbeds::openstack::{Project, Service};
use serde_json::{Value, json};

use super::bed::{Configuration, Yard};
use super::servers::foreign_server;
use crate::bed::wait_until;

/// Of a node that there is no record of.
const LOST: &str = "0000099999";

const TIDY: Configuration = Configuration {
    provider: "    cloud-images: [{name: disk, username: zuul}]\n    port-cleanup-interval: 1",
    pool: "        auto-floating-ip: true",
    image: "cloud-image: disk",
};

fn everything(project: &Project) -> BTreeSet<String> {
    let lists = [
        project.servers(),
        project.ports(),
        project.floating_ips(),
        project.images(),
    ];
    let things = lists.into_iter().flat_map(Result::unwrap);
    things.map(|thing| id(&thing["id"])).collect()
}

fn id(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn floating_ip(project: &Project, description: &str) -> String {
    let public = "/v2.0/networks?router:external=true";
    let public = project.member().list(Service::Network, public, "networks");
    let body = json!({"floatingip": {
        "floating_network_id": public.unwrap()[0]["id"], "description": description,
    }});
    let path = "/v2.0/floatingips";
    let made = project.member().post(Service::Network, path, &body);
    id(&made.unwrap()["floatingip"]["id"])
}

fn port(project: &Project, owner: &str) -> String {
    let body = json!({"port": {"network_id": project.network(), "device_owner": owner}});
    let made = project
        .member()
        .post(Service::Network, "/v2.0/ports", &body);
    id(&made.unwrap()["port"]["id"])
}

#[test]
fn leaks_are_removed_and_what_others_made_stays() {
    let Some(mut yard) = Yard::new("leaks") else {
        return;
    };
    let image = yard.project.create_image("disk", json!({})).unwrap();
    yard.project.connect_outside().unwrap();
    yard.launch(&TIDY.text());
    let (taken, node) = yard.take_one("small");
    let server = yard.server(&node);
    let project = &yard.project;
    let in_use = everything(project);

    // As ours in everything, but of a node that is not recorded.
    let mut metadata = server["metadata"].clone();
    let known = node["id"].as_str().unwrap();
    for value in metadata.as_object_mut().unwrap().values_mut() {
        *value = value.as_str().unwrap().replace(known, LOST).into();
    }
    assert_ne!(metadata, server["metadata"], "it does not name its node");
    let upload = json!({
        "nodeyard_system_id": metadata["nodeyard_system_id"],
        "nodepool_provider_name": metadata["nodepool_provider_name"],
        "nodepool_build_id": "0123456789abcdef0123456789abcdef",
        "nodepool_upload_id": "0000000007",
    });
    let mut others_upload = upload.clone();
    others_upload["nodeyard_system_id"] = json!("another installation");
    let mut others_ip = metadata.clone();
    others_ip["nodepool_provider_name"] = json!("another provider");
    let left = [
        id(&foreign_server(&yard, &json!(image), &metadata)),
        floating_ip(project, &metadata.to_string()),
        project.create_image("left", upload).unwrap(),
        port(project, ""),
    ];
    let others = [
        id(&foreign_server(
            &yard,
            &json!(image),
            &json!({"nodepool_node_id": LOST}),
        )),
        floating_ip(project, "for the web server"),
        floating_ip(project, &others_ip.to_string()),
        project.create_image("theirs", others_upload).unwrap(),
        port(project, "Octavia"),
    ];
    wait_until("all that leaked is gone", || {
        let there = everything(project);
        left.iter().all(|id| !there.contains(id))
    });
    let there = everything(project);
    for id in in_use.iter().chain(&others) {
        assert!(there.contains(id), "{id} is gone as well");
    }
    yard.give_back(&taken, &node["id"]);
}
