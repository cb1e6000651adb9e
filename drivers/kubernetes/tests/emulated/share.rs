//! Namespaces that the nodes of a buildset share, and namespaces of one that know each other.

use std::sync::Arc;

use nodeyard_driver::{CreateOrder, Machines as _, ResourceKind, Target};
use nodeyard_driver_kubernetes::KubernetesDriver;
use serde_json::{Value, json};

use crate::cluster::EmulatedCluster;
use crate::common::{
    create, credentials, delete, delete_node, driver, node, of_buildset, options, order,
};

const SHARED: &str = "type: pod, image: i, cpu: 2, share: buildset";
const OPEN: &str = "type: namespace, buildset-peer-access: services";

fn of(number: u32, buildset: &str, tenant: Option<&str>) -> CreateOrder {
    CreateOrder {
        request: of_buildset(buildset, tenant),
        ..order("share", number)
    }
}

fn provider(cluster: &Arc<EmulatedCluster>, label: &str) -> KubernetesDriver {
    driver(cluster, options("share", "kubernetes", label))
}

fn ends_with(cluster: &EmulatedCluster, end: &str) -> usize {
    let all = cluster.exists();
    all.iter().filter(|path| path.ends_with(end)).count()
}

#[tokio::test]
async fn nodes_of_a_buildset_are_in_one_namespace() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = provider(&cluster, SHARED);
    let (one, other) = (of(1, "b1", None), of(2, "b1", None));
    let (first, second) = (
        create(&driver, &one).await.unwrap(),
        create(&driver, &other).await.unwrap(),
    );
    let (given, others) = (credentials(&first), credentials(&second));
    assert_eq!(given["namespace"], "buildset-b1");
    assert_eq!(given["namespace"], others["namespace"]);
    assert_eq!(given["pod"], "small-0000000001");
    assert_eq!(given["user"], "zuul-worker-0000000001");
    assert_eq!(
        first.external_id.as_text().as_deref(),
        Some("buildset-b1/node-0000000001")
    );
    let role = "/apis/rbac.authorization.k8s.io/v1/namespaces/buildset-b1/roles/zuul-restricted-0000000001";
    let rules = &cluster.object(role)["rules"];
    for rule in rules.as_array().unwrap() {
        assert_eq!(rule["resourceNames"], json!(["small-0000000001"]));
    }

    let listed = driver.list().await.unwrap();
    let ids: Vec<_> = listed
        .iter()
        .filter_map(|found| found.id.as_text())
        .collect();
    assert_eq!(
        ids,
        ["buildset-b1/node-0000000001", "buildset-b1/node-0000000002"]
    );
    let cost = driver.cost(&"main".into(), &"small".into()).await.unwrap();
    assert!(listed.iter().all(|found| found.takes == cost));

    let target = Target::Node {
        node: node(1),
        external_id: Some(first.external_id),
    };
    delete(&driver, &target).await.unwrap();
    assert_eq!(
        ends_with(&cluster, "0000000001"),
        0,
        "{:?}",
        cluster.exists()
    );
    assert_eq!(ends_with(&cluster, "/pods/small-0000000002"), 1);
    delete_node(&driver, &other).await;
    assert!(cluster.exists().is_empty(), "{:?}", cluster.exists());
}

#[tokio::test]
async fn strangers_are_kept_apart() {
    let cluster = Arc::new(EmulatedCluster::default());
    // Somebody else has the name that ours would have.
    let theirs = json!({"nodeyard_system_id": "x", "nodeyard_shared": "buildset", "nodepool_buildset": "b1"});
    cluster.add_namespace("buildset-b1", &theirs);
    let before = cluster.exists();
    let driver = provider(&cluster, SHARED);
    let orders = [
        of(1, "b1", None),
        of(2, "b2", None),
        of(3, "b2", Some("a")),
        of(4, "b2", Some("b")),
        // Nobody's: it is by itself, as without the option.
        order("share", 5),
    ];
    let mut spaces = Vec::new();
    for order in &orders {
        let instance = create(&driver, order).await.unwrap();
        spaces.push(credentials(&instance)["namespace"].clone());
    }
    for (index, space) in spaces.iter().enumerate() {
        assert!(!spaces[index + 1..].contains(space), "{spaces:?}");
        assert_ne!(space, "buildset-b1");
    }
    assert_eq!(spaces[4], "main-0000000005");
    for order in &orders {
        delete_node(&driver, order).await;
    }
    assert_eq!(cluster.exists(), before);
}

/// Whoever leaves last must not take the namespace away from somebody who just came.
#[tokio::test(flavor = "multi_thread")]
async fn coming_and_leaving_at_once() {
    let cluster = Arc::new(EmulatedCluster::default());
    let (one, other) = (provider(&cluster, SHARED), provider(&cluster, SHARED));
    create(&one, &of(0, "b1", None)).await.unwrap();
    for number in 1..60 {
        let (leaving, coming) = (of(number - 1, "b1", None), of(number, "b1", None));
        let ((), came) = tokio::join!(delete_node(&one, &leaving), create(&other, &coming));
        let given = credentials(&came.unwrap());
        let space = given["namespace"].as_str().unwrap();
        let pod = given["pod"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{space}");
        assert_eq!(
            cluster.object(&path)["metadata"]["deletionTimestamp"],
            Value::Null
        );
        let path = format!("{path}/pods/{pod}");
        assert_eq!(
            cluster.object(&path)["metadata"]["deletionTimestamp"],
            Value::Null
        );
        assert_ne!(cluster.object(&path), Value::Null, "{path}");
    }
    delete_node(&one, &of(59, "b1", None)).await;
    assert!(cluster.exists().is_empty(), "{:?}", cluster.exists());
}

#[tokio::test]
async fn a_namespace_that_nobody_came_into_is_found() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = provider(&cluster, SHARED);
    let order = of(1, "b1", None);
    create(&driver, &order).await.unwrap();
    // As if the process had died before it came in.
    cluster.remove("/api/v1/namespaces/buildset-b1/configmaps/node-0000000001");
    let listed = driver.list().await.unwrap();
    let [found] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(found.tags.node, Some(node(1)));
    let target = Target::Resource {
        kind: ResourceKind::INSTANCES,
        id: found.id.clone(),
    };
    // Somebody has come since.
    let late = of(2, "b1", None);
    create(&driver, &late).await.unwrap();
    delete(&driver, &target).await.unwrap();
    assert_eq!(ends_with(&cluster, "/pods/small-0000000002"), 1);
    delete_node(&driver, &late).await;
    assert!(cluster.exists().is_empty(), "{:?}", cluster.exists());
}

#[tokio::test]
async fn peers_look_at_each_others_services() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = provider(&cluster, OPEN);
    let orders = [of(1, "b1", None), of(2, "b1", None), of(3, "b2", None)];
    let mut last = None;
    for order in &orders[..2] {
        last = Some(create(&driver, order).await.unwrap());
    }
    let properties: Value = last.unwrap().node_properties.decode().unwrap();
    assert_eq!(
        properties["buildset"]["namespaces"],
        json!(["main-0000000001"])
    );
    create(&driver, &orders[2]).await.unwrap();
    let binding = |at: u32, from: u32| {
        let path = format!(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/main-{at:010}/rolebindings/zuul-peer-main-{from:010}"
        );
        cluster.object(&path)
    };
    for (at, from) in [(1, 2), (2, 1)] {
        let group = &binding(at, from)["subjects"][0]["name"];
        assert_eq!(*group, format!("system:serviceaccounts:main-{from:010}"));
    }
    for (at, from) in [(1, 3), (3, 1), (2, 3), (3, 2)] {
        assert_eq!(binding(at, from), Value::Null);
    }
    for order in &orders {
        delete_node(&driver, order).await;
    }
    assert!(cluster.exists().is_empty());
}

#[tokio::test]
async fn nodes_of_a_buildset_are_for_nobody_else() {
    let cluster = Arc::new(EmulatedCluster::default());
    for (label, bound) in [(SHARED, true), (OPEN, true), ("type: namespace", false)] {
        let driver = provider(&cluster, label);
        assert_eq!(
            driver.is_bound_to_request(&"main".into(), &"small".into()),
            bound,
            "{label}"
        );
    }
}
