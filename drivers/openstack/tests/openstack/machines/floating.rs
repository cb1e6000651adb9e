//! Floating IPs of the real services that were left behind.

use nodeyard_driver::Owner;
use nodeyard_model::NodeId;
use nodeyard_testbeds::openstack::{Project, Service};
use serde_json::{Value, json};

use crate::machines::common::{
    connected_project, create, delete_node, driver, node, options_with_floating_ips, order, owner,
};

fn add(project: &Project, description: &str) -> Value {
    let member = project.member();
    let public = "/v2.0/networks?router:external=true";
    let public = member.list(Service::Network, public, "networks").unwrap();
    let ip = json!({"floatingip": {
        "floating_network_id": public[0]["id"], "description": description,
    }});
    let made = member.post(Service::Network, "/v2.0/floatingips", &ip);
    made.unwrap()["floatingip"].take()
}

/// What is on those that we make.
fn mark(owner: &Owner, node: NodeId) -> String {
    let tags = owner.node_tags(node, "main".into());
    json!(tags.to_metadata()).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_a_node_has_from_before_is_used_again_by_that_node_alone() {
    let Some(project) = connected_project("reuse") else {
        return;
    };
    let owner = owner("reuse");
    let own = add(&project, &mark(&owner, node(1)));
    let others = [
        add(&project, &mark(&owner, node(7))),
        add(&project, "for the web server"),
    ];
    let driver = driver(
        options_with_floating_ips(owner.clone()),
        &project.clouds_yaml(),
    );
    let first = create(&driver, &order(&owner, node(1))).await.unwrap();
    assert_eq!(json!(first.public_ipv4), own["floating_ip_address"]);
    let second = create(&driver, &order(&owner, node(2))).await.unwrap();
    assert_ne!(first.public_ipv4, second.public_ipv4);
    let unused = || -> Vec<Value> {
        let mut ips = project.floating_ips().unwrap();
        ips.retain(|ip| ip["port_id"].is_null());
        ips.iter().map(|ip| ip["id"].clone()).collect()
    };
    let is_others = |id: &Value| others.iter().any(|ip| ip["id"] == *id);
    assert_eq!(project.floating_ips().unwrap().len(), 4);
    assert!(unused().len() == 2 && unused().iter().all(is_others));
    delete_node(&driver, node(1)).await;
    delete_node(&driver, node(2)).await;
    assert_eq!(project.floating_ips().unwrap().len(), 2);
    assert!(unused().iter().all(is_others));
}
