//! Every kind of node, from its order to its end.

use std::sync::Arc;

use nodeyard_driver::{Machines as _, Owner, Target};
use nodeyard_model::{ConnectionPort, ProviderName};
use serde_json::{Value, json};

use crate::cluster::EmulatedCluster;
use crate::common::{
    create, credentials, delete, delete_node, driver, node, options, options_named, order,
    order_named, owner,
};

const SPACE: &str = "/api/v1/namespaces/main-0000000001";
const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/main-0000000001";

#[tokio::test]
async fn a_pod_has_what_zuul_needs() {
    let cluster = Arc::new(EmulatedCluster::default());
    let label = "type: pod, image: i, python-path: /usr/bin/python3, shell-type: sh, cpu: 1, memory: 64, \
        labels: {team: a}, dynamic-labels: {tenant: 'x {request.tenant_name}', odd: '{request.nothing}'}";
    let driver = driver(&cluster, options("pod", "kubernetes", label));
    let order = order("pod", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(
        instance.external_id.as_text().as_deref(),
        Some("main-0000000001")
    );
    assert_eq!(instance.connection_type.as_deref(), Some("kubectl"));
    assert_eq!(instance.interface_ip.as_deref(), Some("small"));
    assert_eq!(instance.cloud.as_deref(), Some("test"));
    assert_eq!(instance.python_path.as_deref(), Some("/usr/bin/python3"));
    assert_eq!(instance.shell_type.as_deref(), Some("sh"));
    assert_eq!(instance.host_id.as_deref(), Some("node"));
    assert_eq!(instance.username, None);
    let expected = json!({
        "name": "main-0000000001", "namespace": "main-0000000001", "host": "https://emulated", "skiptls": false,
        "token": "token", "user": "zuul-worker", "ca_crt": "Y2E=", "pod": "small",
    });
    assert_eq!(credentials(&instance), expected);

    for path in [SPACE, &format!("{SPACE}/pods/small")] {
        let labels = &cluster.object(path)["metadata"]["labels"];
        assert_eq!(labels["nodepool_node_id"], "0000000001");
        assert_eq!(labels["nodepool_provider_name"], "cluster");
        assert_eq!(labels["nodepool_pool_name"], "main");
        assert_eq!(labels["nodepool_node_label"], "small");
        assert_eq!(labels["nodeyard_system_id"], "pod");
        assert_eq!(labels["team"], "a");
        assert!(labels["tenant"].as_str().unwrap().starts_with("x_None-"));
        assert_eq!(labels["odd"], Value::Null);
    }
    let role = cluster.object(&format!("{RIGHTS}/roles/zuul-restricted"));
    let rules = role["rules"].as_array().unwrap();
    assert!(rules.iter().all(|rule| {
        !rule["resources"]
            .as_array()
            .unwrap()
            .contains(&"secrets".into())
    }));
    let binding = cluster.object(&format!("{RIGHTS}/rolebindings/zuul-role"));
    assert_eq!(binding["roleRef"]["name"], "zuul-restricted");
    assert_eq!(binding["subjects"][0]["namespace"], "main-0000000001");

    let listed = driver.list().await.unwrap();
    let ours: Vec<_> = listed
        .iter()
        .filter(|r| owner("pod").owns_node(&r.tags, node(1)))
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
async fn a_namespace_is_for_building_things_in() {
    let cluster = Arc::new(EmulatedCluster::default());
    let label = "type: namespace, extra-rules: [{apiGroups: [networking.k8s.io], resources: [ingresses], verbs: [create]}]";
    let driver = driver(&cluster, options("space", "kubernetes", label));
    let order = order("space", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("namespace"));
    assert_eq!(instance.interface_ip, None);
    assert_eq!(credentials(&instance).get("pod"), None);
    let role = cluster.object(&format!("{RIGHTS}/roles/zuul"));
    let grants = |group: &str, resource: &str| {
        role["rules"].as_array().unwrap().iter().any(|rule| {
            rule["apiGroups"][0] == group
                && rule["resources"]
                    .as_array()
                    .unwrap()
                    .contains(&resource.into())
        })
    };
    for (group, resource) in [
        ("", "pods/log"),
        ("", "serviceaccounts/token"),
        ("apps", "deployments"),
        ("batch", "cronjobs"),
        ("networking.k8s.io", "ingresses"),
    ] {
        assert!(grants(group, resource), "{group}/{resource}");
    }
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
}

#[tokio::test]
async fn a_namespace_is_as_strict_as_the_label_says() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.add_namespace("secrets", &Value::Null);
    let secret = json!({"metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson", "data": {"x": "eA=="}});
    cluster.add("/api/v1/namespaces/secrets/secrets", secret);
    let label = "type: pod, image: i, token-ttl: 7200, namespace-labels: {pod-security.kubernetes.io/warn: restricted}, \
        namespace-annotations: {owner: ci}, namespace-quota: {pods: '2'}, deny-network: true, \
        image-pull-secrets: [{name: pull, namespace: secrets}]";
    let driver = driver(&cluster, options("strict", "kubernetes", label));
    let order = order("strict", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(credentials(&instance)["token"], "short");
    let space = cluster.object(SPACE);
    assert_eq!(
        space["metadata"]["labels"]["pod-security.kubernetes.io/warn"],
        "restricted"
    );
    assert_eq!(space["metadata"]["annotations"]["owner"], "ci");
    let quota = cluster.object(&format!("{SPACE}/resourcequotas/nodeyard"));
    assert_eq!(quota["spec"]["hard"], json!({"pods": "2"}));
    let policy = "/apis/networking.k8s.io/v1/namespaces/main-0000000001/networkpolicies/deny";
    assert_eq!(
        cluster.object(policy)["spec"]["policyTypes"],
        json!(["Ingress"])
    );
    let copy = cluster.object(&format!("{SPACE}/secrets/pull"));
    assert_eq!(copy["data"], json!({"x": "eA=="}));
    assert_eq!(
        cluster.object(&format!("{SPACE}/secrets/zuul-worker")),
        Value::Null
    );
}

#[tokio::test]
async fn an_ssh_pod_is_an_ordinary_machine() {
    for (expose, kind, address, port) in [
        ("cluster", "ClusterIP", "10.0.0.7", 22),
        (
            "node-port, external-address: nodes.example",
            "NodePort",
            "nodes.example",
            30022,
        ),
        ("load-balancer", "LoadBalancer", "balancer.example", 22),
    ] {
        let cluster = Arc::new(EmulatedCluster::default());
        let label = format!(
            "type: pod, image: i, ssh: {{expose: {expose}, authorized-keys: [ssh-ed25519 AAAA], host-key-checking: false}}"
        );
        let driver = driver(&cluster, options("ssh", "kubernetes", &label));
        let order = order("ssh", 1);
        let instance = create(&driver, &order).await.unwrap();
        assert_eq!(instance.connection_type.as_deref(), Some("ssh"));
        assert_eq!(instance.interface_ip.as_deref(), Some(address));
        assert_eq!(instance.connection_port, Some(ConnectionPort::Number(port)));
        assert_eq!(instance.username.as_deref(), Some("zuul"));
        let service = cluster.object(&format!("{SPACE}/services/small"));
        assert_eq!(service["spec"]["type"], kind);
        assert_eq!(
            service["spec"]["selector"],
            json!({"nodepool_node_id": "0000000001"})
        );
        let keys = cluster.object(&format!("{SPACE}/configmaps/small"));
        assert_eq!(keys["data"]["zuul"], "ssh-ed25519 AAAA\n");
        // Nobody is given a token, so there is no account for it.
        assert_eq!(
            cluster.object(&format!("{SPACE}/serviceaccounts/zuul-worker")),
            Value::Null
        );
        delete_node(&driver, &order).await;
        assert!(cluster.exists().is_empty());
    }
}

#[tokio::test]
async fn the_longest_and_the_oddest_names_work() {
    let cluster = Arc::new(EmulatedCluster::default());
    let (pool, label) = ("p".repeat(63), "1".repeat(63));
    let mut options = options_named("long", "kubernetes", &pool, &label, "type: pod, image: i");
    let odd = Owner {
        provider: ProviderName::new("Größter Cluster: Nr. 1!").unwrap(),
        ..owner("long")
    };
    options.owner = odd.clone();
    let driver = driver(&cluster, options);
    let mut order = order_named("long", 1, &pool, &label);
    order.tags = odd.node_tags(node(1), pool.as_str().into());
    let instance = create(&driver, &order).await.unwrap();
    assert!(instance.external_id.as_text().unwrap().len() <= 63);
    let listed = driver.list().await.unwrap();
    assert!(listed.iter().any(|r| odd.owns_node(&r.tags, node(1))));
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
}

#[tokio::test]
async fn what_others_made_is_left_alone() {
    let cluster = Arc::new(EmulatedCluster::default());
    // One of a person, one of a Nodepool, one of another installation, all with our names.
    cluster.add_namespace("main-0000000001", &Value::Null);
    let nodepools = json!({"nodepool_provider_name": "cluster", "nodepool_node_id": "0000000002"});
    cluster.add_namespace("main-0000000002", &nodepools);
    let anothers = json!({"nodepool_provider_name": "cluster", "nodepool_node_id": "0000000003", "nodeyard_system_id": "x"});
    cluster.add_namespace("main-0000000003", &anothers);
    let before = cluster.exists();
    let driver = driver(&cluster, options("others", "kubernetes", "type: namespace"));
    for number in 1..4 {
        let order = order("others", number);
        let instance = create(&driver, &order).await.unwrap();
        assert_ne!(
            instance.external_id.as_text(),
            Some(format!("main-{number:010}"))
        );
        delete_node(&driver, &order).await;
    }
    // A record that names another installation's namespace does not make it ours.
    let named = |number: u32| Target::Node {
        node: node(number),
        external_id: Some(format!("main-{number:010}").as_str().into()),
    };
    delete(&driver, &named(3)).await.unwrap();
    assert_eq!(cluster.exists(), before);
    // What a Nodepool before us made goes when its record says so.
    delete(&driver, &named(2)).await.unwrap();
    assert_eq!(
        cluster.object("/api/v1/namespaces/main-0000000002"),
        Value::Null
    );
}

#[tokio::test]
async fn two_launchers_place_one_order() {
    let cluster = Arc::new(EmulatedCluster::default());
    let make = || {
        driver(
            &cluster,
            options("two", "kubernetes", "type: pod, image: i"),
        )
    };
    let (one, other) = (make(), make());
    let order = order("two", 1);
    let (first, second) = tokio::join!(create(&one, &order), create(&other, &order));
    assert_eq!(first.unwrap().external_id, second.unwrap().external_id);
    tokio::join!(delete_node(&one, &order), delete_node(&other, &order));
    assert!(cluster.exists().is_empty());
}
