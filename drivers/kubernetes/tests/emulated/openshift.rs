//! Projects and their pods, with the calls of OpenShift.

use std::sync::Arc;

use nodeyard_driver::{Machines as _, Target};
use serde_json::{Value, json};

use crate::cluster::EmulatedCluster;
use crate::common::{
    create, credentials, delete, delete_node, driver, node, options, options_named, order,
    order_named, owner,
};

#[tokio::test]
async fn a_project_is_known_by_its_description() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = driver(
        &cluster,
        options("project", "openshift", "type: project, cpu: 3"),
    );
    let order = order("project", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("project"));
    let given = credentials(&instance);
    assert_eq!(given["namespace"], "main-0000000001");
    assert_eq!((given.get("name"), given.get("pod")), (None, None));
    let rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/main-0000000001/rolebindings";
    assert_eq!(
        cluster.object(&format!("{rights}/admin-0"))["roleRef"]["name"],
        "admin"
    );
    let registry = cluster.object(&format!("{rights}/zuul-image-builder"));
    assert_eq!(registry["roleRef"]["name"], "system:image-builder");
    // It got no labels, and yet it is known whose it is and what it takes.
    let space = cluster.object("/api/v1/namespaces/main-0000000001");
    assert_eq!(space["metadata"]["labels"], Value::Null);
    let listed = driver.list().await.unwrap();
    let ours: Vec<_> = listed
        .iter()
        .filter(|r| owner("project").owns_node(&r.tags, node(1)))
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(
        ours[0].takes,
        driver.cost(&"main".into(), &"small".into()).await.unwrap()
    );
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
}

#[tokio::test]
async fn a_pod_in_a_project_has_no_host_id() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = driver(&cluster, options("pod", "openshift", "type: pod, image: i"));
    let instance = create(&driver, &order("pod", 1)).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("kubectl"));
    assert_eq!(instance.host_id, None);
}

/// As after a crash in the middle of a launch: nothing but its name leads to it.
#[tokio::test]
async fn a_project_that_no_list_shows_is_found_by_its_node() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.behave(|behaviour| behaviour.late_lists = true);
    let driver = driver(&cluster, options("late", "openshift", "type: project"));
    let order = order("late", 1);
    create(&driver, &order).await.unwrap();
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
}

/// The image streams of a cluster with a registry; nobody outside reaches it unless it is `exposed`.
fn add_registry(cluster: &EmulatedCluster, exposed: bool) {
    cluster.add_namespace("openshift", &Value::Null);
    let mut status = json!({"dockerImageRepository": "registry.svc:5000/openshift/cli"});
    if exposed {
        status["publicDockerImageRepository"] = "registry.example/openshift/cli".into();
    }
    cluster.add(
        "/apis/image.openshift.io/v1/namespaces/openshift/imagestreams",
        json!({"metadata": {"name": "cli"}, "status": status}),
    );
}

#[tokio::test]
async fn a_project_knows_where_the_registry_is() {
    for (label, exposed, host) in [
        ("type: project", true, Some("registry.svc:5000")),
        ("type: project", false, Some("registry.svc:5000")),
        (
            "type: project, registry-external: true",
            true,
            Some("registry.example"),
        ),
        ("type: project, registry-access: none", true, None),
        ("type: pod, image: i", true, None),
    ] {
        let cluster = Arc::new(EmulatedCluster::default());
        add_registry(&cluster, exposed);
        let driver = driver(&cluster, options("registry", "openshift", label));
        let instance = create(&driver, &order("registry", 1)).await.unwrap();
        let properties: Option<Value> = instance.node_properties.decode().unwrap();
        let expected = host.map(|host| {
            json!({"registry": {"host": host, "namespace": "main-0000000001", "pull_secret": "dockercfg"}})
        });
        assert_eq!(properties, expected, "{label}");
    }
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_missed_only_by_those_who_ask_for_it() {
    let cluster = Arc::new(EmulatedCluster::default());
    let without = driver(&cluster, options("registry", "openshift", "type: project"));
    let instance = create(&without, &order("registry", 1)).await.unwrap();
    assert!(instance.node_properties.is_null());
    add_registry(&cluster, false);
    let label = "type: project, registry-external: true";
    let driver = driver(&cluster, options("registry", "openshift", label));
    let (error, _) = create(&driver, &order("registry", 2)).await.unwrap_err();
    assert!(error.to_string().contains("registry-external"), "{error}");
}

#[tokio::test]
async fn a_pod_in_a_project_of_its_own() {
    let cluster = Arc::new(EmulatedCluster::default());
    let driver = driver(
        &cluster,
        options("projectpod", "openshift", "type: pod, image: i"),
    );
    let order = order("projectpod", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("kubectl"));
    assert_eq!(credentials(&instance)["pod"], "small");
    let pod = cluster.object("/api/v1/namespaces/main-0000000001/pods/small");
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([]));
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
}

/// One pool's name is the beginning of another's.
#[tokio::test]
async fn pods_share_a_project() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.add_namespace("shared", &Value::Null);
    cluster.add_namespace("shared-more", &Value::Null);
    let before = cluster.exists();
    let mut options = options_named(
        "shared",
        "openshiftpods",
        "shared-more",
        "small",
        "image: i, cpu: 1",
    );
    let shorter = options_named("shared", "openshiftpods", "shared", "small", "image: i");
    options.pools.extend(shorter.pools);
    let driver = driver(&cluster, options);
    let orders = [1, 2].map(|number| order_named("shared", number, "shared-more", "small"));
    for order in &orders {
        let instance = create(&driver, order).await.unwrap();
        let pod = format!("small-{}", order.node);
        assert_eq!(
            instance.external_id.as_text(),
            Some(format!("shared-more-{pod}"))
        );
        assert_eq!(instance.interface_ip.as_deref(), Some(pod.as_str()));
        let expected = json!({
            "namespace": "shared-more", "host": "https://emulated", "skiptls": false, "token": "ours",
            "user": "zuul-worker", "ca_crt": "Y2E=", "pod": pod,
        });
        assert_eq!(credentials(&instance), expected);
    }
    assert_eq!(driver.list().await.unwrap().len(), 2);
    let target = Target::Node {
        node: orders[0].node,
        external_id: Some(
            format!("shared-more-small-{}", orders[0].node)
                .as_str()
                .into(),
        ),
    };
    delete(&driver, &target).await.unwrap();
    assert_eq!(driver.list().await.unwrap().len(), 1);
    delete_node(&driver, &orders[1]).await;
    assert_eq!(cluster.exists(), before);
}

#[tokio::test]
async fn a_service_goes_with_its_pod() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.add_namespace("main", &Value::Null);
    let before = cluster.exists();
    let label = "image: i, ssh: {headless: true, host-key-checking: false, authorized-keys: k}";
    let driver = driver(&cluster, options("service", "openshiftpods", label));
    let order = order("service", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.interface_ip.as_deref(), Some("10.1.0.9"));
    let pod = cluster.object("/api/v1/namespaces/main/pods/small-0000000001");
    for path in ["services/small-0000000001", "configmaps/small-0000000001"] {
        let object = cluster.object(&format!("/api/v1/namespaces/main/{path}"));
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], pod["metadata"]["uid"], "{path}");
    }
    delete_node(&driver, &order).await;
    assert_eq!(cluster.exists(), before);
}
