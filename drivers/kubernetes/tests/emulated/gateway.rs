//! SSH pods behind a gateway.

use std::sync::Arc;

use nodeyard_driver::{ErrorClass, Machines as _, Target};
use nodeyard_model::ConnectionPort;
use serde_json::{Value, json};

use crate::cluster::EmulatedCluster;
use crate::common::{create, delete_node, driver, of_buildset, options, order};

const LABEL: &str = "image: i, ssh: {expose: gateway, gateway: {name: tcp, namespace: edge}, \
                     port-range: [2200, 2209], host-key-checking: false}";

fn cluster_with_gateway() -> Arc<EmulatedCluster> {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.add_namespace("edge", &Value::Null);
    let gateway = json!({"metadata": {"name": "tcp"}, "status": {"addresses": [{"value": "gateway.example"}]}});
    cluster.add(
        "/apis/gateway.networking.k8s.io/v1/namespaces/edge/gateways",
        gateway,
    );
    cluster
}

/// How many objects of a kind exist.
fn count(cluster: &EmulatedCluster, kind: &str) -> usize {
    let all = cluster.exists();
    all.iter().filter(|path| path.contains(kind)).count()
}

#[tokio::test]
async fn each_ssh_pod_has_a_port_of_the_gateway() {
    let cluster = cluster_with_gateway();
    let before = cluster.exists();
    let label = "type: pod, image: i, ssh: {expose: gateway, gateway: {name: tcp, namespace: edge}, \
        port-range: [2200, 2201], host-key-checking: false}";
    let driver = driver(&cluster, options("gateway", "kubernetes", label));
    let orders = [1, 2, 3].map(|number| order("gateway", number));
    for (order, port) in orders.iter().zip([2201, 2200]) {
        let instance = create(&driver, order).await.unwrap();
        assert_eq!(instance.interface_ip.as_deref(), Some("gateway.example"));
        assert_eq!(instance.connection_port, Some(ConnectionPort::Number(port)));
    }
    let (error, _) = create(&driver, &orders[2]).await.unwrap_err();
    assert!(error.to_string().contains("port-range"), "{error}");
    let route =
        "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/main-0000000001/tcproutes/small";
    assert_eq!(cluster.object(route)["spec"]["parentRefs"][0]["port"], 2201);
    delete_node(&driver, &orders[0]).await;
    delete_node(&driver, &orders[2]).await;
    let instance = create(&driver, &orders[2]).await.unwrap();
    assert_eq!(instance.connection_port, Some(ConnectionPort::Number(2201)));
    for order in &orders {
        delete_node(&driver, order).await;
    }
    assert_eq!(cluster.exists(), before);
}

#[tokio::test]
async fn the_route_of_a_pod_among_others_does_not_leak() {
    for (system, provider, label) in [
        ("pods", "openshiftpods", LABEL.to_owned()),
        (
            "share",
            "kubernetes",
            format!("type: pod, share: buildset, {LABEL}"),
        ),
    ] {
        let cluster = cluster_with_gateway();
        cluster.add_namespace("main", &Value::Null);
        let before = cluster.exists();
        let driver = driver(&cluster, options(system, provider, &label));
        let orders = [1, 2].map(|number| {
            let mut order = order(system, number);
            order.request = of_buildset("b1", None);
            order
        });
        for order in &orders {
            create(&driver, order).await.unwrap();
        }
        for path in cluster.exists() {
            let owner = &cluster.object(&path)["metadata"]["ownerReferences"][0]["kind"];
            assert!(!path.contains("/tcproutes/") || owner.is_string(), "{path}");
        }
        delete_node(&driver, &orders[0]).await;
        assert_eq!(count(&cluster, "/tcproutes/"), 1, "{system}");
        assert_eq!(count(&cluster, "/leases/"), 1, "{system}");
        delete_node(&driver, &orders[1]).await;
        assert_eq!(cluster.exists(), before, "{system}");
    }
}

#[tokio::test]
async fn a_port_of_the_gateway_is_not_used_again_at_once() {
    let cluster = cluster_with_gateway();
    let label = format!("type: pod, {LABEL}");
    let driver = driver(&cluster, options("gateway", "kubernetes", &label));
    let mut ports = Vec::new();
    for number in 1..=10 {
        let order = order("gateway", number);
        let instance = create(&driver, &order).await.unwrap();
        let Some(ConnectionPort::Number(port)) = instance.connection_port else {
            panic!("{instance:?}");
        };
        assert!(!ports.contains(&port), "{port} after {ports:?}");
        ports.push(port);
        delete_node(&driver, &order).await;
    }
}

#[tokio::test]
async fn a_port_of_the_gateway_is_released_after_its_route() {
    let cluster = cluster_with_gateway();
    cluster.add_namespace("main", &Value::Null);
    let driver = driver(&cluster, options("route", "openshiftpods", LABEL));
    let order = order("route", 1);
    create(&driver, &order).await.unwrap();
    cluster.behave(|behaviour| behaviour.routes_stay = true);
    let target = Target::Node {
        node: order.node,
        external_id: None,
    };
    let error = driver.delete(&target).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    assert!(error.to_string().contains("route"), "{error}");
    assert_eq!(count(&cluster, "/leases/"), 1);
    cluster.behave(|behaviour| behaviour.routes_stay = false);
    delete_node(&driver, &order).await;
    assert_eq!(count(&cluster, "/leases/"), 0);
}
