//! Every kind of node, from its order to its end.

use nodeyard_driver::{Machines as _, Owner, ResourceKind, Target};
use nodeyard_driver_kubernetes::exec::{Container, Credentials};
use nodeyard_testbeds::Cluster;
use serde_json::{Value, json};

use crate::common::{
    cluster, create, credentials, delete, delete_node, driver, json, namespaces, node, options,
    order, owner,
};

/// What the node's own account may do, as the API server sees it. A resource may have a part, as in `pods/exec`.
fn may(cluster: &Cluster, namespace: &str, verb: &str, resource: &str) -> bool {
    let account = format!("system:serviceaccount:{namespace}:zuul-worker");
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let mut command = cluster.kubectl_command();
    command
        .args(["auth", "can-i", verb, resource, "--quiet"])
        .args(["--subresource", part])
        .args(["--namespace", namespace, "--as", &account]);
    command.output().unwrap().status.success()
}

fn reach(credentials: &Value) -> Container {
    let read: Credentials = serde_json::from_value(credentials.clone()).unwrap();
    Container {
        client: read.client().unwrap(),
        namespace: read.namespace.clone(),
        pod: read.pod.clone().unwrap(),
        container: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_from_its_order_to_its_end() {
    let Some(cluster) = cluster() else { return };
    let label = format!(
        "type: pod, image: '{}', python-path: /usr/bin/python3, shell-type: sh, cpu: 1, memory: 64, labels: {{team: a}}, \
         dynamic-labels: {{tenant: 'x {{request.tenant_name}}'}}",
        cluster.image()
    );
    let driver = driver(cluster, options("pod", "kubernetes", &label));
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
    assert!(instance.host_id.is_some());
    assert_eq!(instance.username, None);

    let given = credentials(&instance);
    assert_eq!(given["name"], "main-0000000001");
    assert_eq!(given["namespace"], "main-0000000001");
    assert_eq!(given["pod"], "small");
    assert_eq!(given["user"], "zuul-worker");
    assert_eq!(given["skiptls"], false);
    assert!(given["host"].as_str().unwrap().starts_with("https://"));
    assert!(given["ca_crt"].is_string() && given["token"].is_string());

    let space = json(cluster, &["get", "namespace", "main-0000000001"]);
    let labels = &space["metadata"]["labels"];
    assert_eq!(labels["nodepool_node_id"], "0000000001");
    assert_eq!(labels["nodepool_provider_name"], "cluster");
    assert_eq!(labels["nodepool_pool_name"], "main");
    assert_eq!(labels["nodepool_node_label"], "small");
    assert_eq!(labels["team"], "a");
    assert!(labels["tenant"].as_str().unwrap().starts_with("x_None-"));

    for (verb, resource, allowed) in [
        ("get", "pods", true),
        ("create", "pods/exec", true),
        ("get", "pods/log", true),
        ("create", "pods/portforward", true),
        ("create", "pods", false),
        ("get", "secrets", false),
        ("list", "namespaces", false),
    ] {
        assert_eq!(
            may(cluster, "main-0000000001", verb, resource),
            allowed,
            "{verb} {resource}"
        );
    }

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

    let target = Target::Node {
        node: order.node,
        external_id: Some(instance.external_id),
    };
    delete(&driver, &target).await.unwrap();
    assert!(namespaces(cluster, "pod").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_input_output_complaints_and_an_end() {
    let Some(cluster) = cluster() else { return };
    let label = format!("type: pod, image: '{}'", cluster.image());
    let driver = driver(cluster, options("commands", "kubernetes", &label));
    let order = order("commands", 2);
    let instance = create(&driver, &order).await.unwrap();
    let container = reach(&credentials(&instance));
    let script = "cat; echo complaint >&2; exit 3";
    let command = ["sh", "-c", script].map(ToOwned::to_owned);
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let input: &[u8] = b"input\n";
    let code = container
        .run(&command, Some(input), &mut said, &mut complained)
        .await
        .unwrap();
    assert_eq!(
        (code, said, complained),
        (3, b"input\n".to_vec(), b"complaint\n".to_vec())
    );

    // More than any buffer on the way.
    let large: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    let command = ["cat"].map(ToOwned::to_owned);
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let code = container
        .run(&command, Some(&large[..]), &mut said, &mut complained)
        .await
        .unwrap();
    assert_eq!(code, 0);
    assert!(said == large, "{} bytes came back", said.len());

    let command = ["no-such-program"].map(ToOwned::to_owned);
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let missing = container
        .run(&command, None::<&[u8]>, &mut said, &mut complained)
        .await;
    assert!(!matches!(missing, Ok(0)), "{missing:?}");
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_to_build_things_in() {
    let Some(cluster) = cluster() else { return };
    let label = "type: namespace, extra-rules: [{apiGroups: [networking.k8s.io], resources: [ingresses], verbs: [create]}]";
    let driver = driver(cluster, options("space", "kubernetes", label));
    let order = order("space", 3);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("namespace"));
    assert_eq!(instance.interface_ip, None);
    let given = credentials(&instance);
    assert_eq!(given.get("pod"), None);
    let name = "main-0000000003";
    for (verb, resource, allowed) in [
        ("create", "pods", true),
        ("get", "pods/log", true),
        ("create", "deployments.apps", true),
        ("create", "jobs.batch", true),
        ("create", "cronjobs.batch", true),
        ("create", "serviceaccounts/token", true),
        ("create", "ingresses.networking.k8s.io", true),
        ("create", "roles.rbac.authorization.k8s.io", false),
        ("list", "nodes", false),
    ] {
        assert_eq!(
            may(cluster, name, verb, resource),
            allowed,
            "{verb} {resource}"
        );
    }
    delete_node(&driver, &order).await;
    assert!(namespaces(cluster, "space").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_may_have_an_end() {
    let Some(cluster) = cluster() else { return };
    let label = format!("type: pod, image: '{}', token-ttl: 7200", cluster.image());
    let driver = driver(cluster, options("ttl", "kubernetes", &label));
    let order = order("ttl", 4);
    let instance = create(&driver, &order).await.unwrap();
    let given = credentials(&instance);
    assert!(given["ca_crt"].is_string());
    let container = reach(&given);
    let command = ["true"].map(ToOwned::to_owned);
    let code = container
        .run(&command, None::<&[u8]>, Vec::new(), Vec::new())
        .await
        .unwrap();
    assert_eq!(code, 0);
    let secrets = json(
        cluster,
        &["get", "secrets", "--namespace", "main-0000000004"],
    );
    assert_eq!(secrets["items"], json!([]), "no token that lives for ever");
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_as_strict_as_the_label_says() {
    let Some(cluster) = cluster() else { return };
    cluster
        .kubectl(&[
            "create",
            "secret",
            "docker-registry",
            "pull",
            "--docker-server=r",
            "--docker-username=u",
            "--docker-password=p",
            "--namespace=default",
        ])
        .unwrap();
    let label = format!(
        "type: pod, image: '{}', cpu: 1, namespace-labels: {{pod-security.kubernetes.io/warn: restricted}}, \
         namespace-annotations: {{owner: ci}}, namespace-quota: {{pods: '2', requests.cpu: '1', limits.cpu: '1'}}, \
         deny-network: true, automount-service-account-token: false, restart-policy: Never, \
         image-pull-secrets: [{{name: pull, namespace: default}}]",
        cluster.image()
    );
    let driver = driver(cluster, options("strict", "kubernetes", &label));
    let order = order("strict", 5);
    create(&driver, &order).await.unwrap();
    let name = "main-0000000005";
    let space = json(cluster, &["get", "namespace", name]);
    assert_eq!(
        space["metadata"]["labels"]["pod-security.kubernetes.io/warn"],
        "restricted"
    );
    assert_eq!(space["metadata"]["annotations"]["owner"], "ci");
    let quota = json(
        cluster,
        &["get", "resourcequota", "nodeyard", "--namespace", name],
    );
    assert_eq!(quota["spec"]["hard"]["pods"], "2");
    let policy = json(
        cluster,
        &["get", "networkpolicy", "deny", "--namespace", name],
    );
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    let secret = json(cluster, &["get", "secret", "pull", "--namespace", name]);
    assert_eq!(secret["type"], "kubernetes.io/dockerconfigjson");
    let pod = json(cluster, &["get", "pod", "small", "--namespace", name]);
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_car_and_the_main_container_see_the_same_files() {
    let Some(cluster) = cluster() else { return };
    let image = cluster.image();
    let label = format!("type: pod, image: '{image}', git-sidecar: {{image: '{image}'}}");
    let driver = driver(cluster, options("sidecar", "kubernetes", &label));
    let order = order("sidecar", 6);
    let instance = create(&driver, &order).await.unwrap();
    let properties: Value = instance.node_properties.decode().unwrap();
    assert_eq!(
        properties["git"],
        json!({"container": "git-sidecar", "path": "/zuul/git"})
    );
    let main = reach(&credentials(&instance));
    let side = Container {
        container: Some("git-sidecar".to_owned()),
        ..main.clone()
    };
    let run = async |container: &Container, script: &str| {
        let command = ["sh", "-c", script].map(ToOwned::to_owned);
        let mut said = Vec::new();
        let code = container
            .run(&command, None::<&[u8]>, &mut said, Vec::new())
            .await
            .unwrap();
        (code, String::from_utf8(said).unwrap())
    };
    let (code, _) = run(
        &side,
        "git init -q /zuul/git/repo && echo hello > /zuul/git/repo/file",
    )
    .await;
    assert_eq!(code, 0);
    let (code, said) = run(
        &main,
        "cat /zuul/git/repo/file && echo back > /zuul/git/answer",
    )
    .await;
    assert_eq!((code, said.as_str()), (0, "hello\n"));
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_launchers_share_a_cluster() {
    let Some(cluster) = cluster() else { return };
    let make = || driver(cluster, options("two", "kubernetes", "type: namespace"));
    let (one, other) = (make(), make());
    let orders: Vec<_> = (10..16).map(|number| order("two", number)).collect();
    // Each order is placed with both at once, as when one takes over what the other still does.
    for order in &orders {
        let (first, second) = tokio::join!(create(&one, order), create(&other, order));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.external_id, second.external_id);
    }
    assert_eq!(namespaces(cluster, "two").len(), orders.len());
    for order in &orders {
        tokio::join!(delete_node(&one, order), delete_node(&other, order));
    }
    assert!(namespaces(cluster, "two").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_made_is_left_alone() {
    let Some(cluster) = cluster() else { return };
    // One of a person, one of a Nodepool, one of another installation, all with our names.
    for (number, labels) in [
        (20, ""),
        (
            21,
            "nodepool_provider_name=cluster,nodepool_node_id=0000000021",
        ),
        (
            22,
            "nodepool_provider_name=cluster,nodepool_node_id=0000000022,nodeyard_system_id=another",
        ),
    ] {
        let name = format!("main-{number:010}");
        cluster.kubectl(&["create", "namespace", &name]).unwrap();
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            cluster
                .kubectl(&["label", "namespace", &name, label])
                .unwrap();
        }
    }
    let driver = driver(cluster, options("others", "kubernetes", "type: namespace"));
    for number in 20..23 {
        let order = order("others", number);
        let instance = create(&driver, &order).await.unwrap();
        let id = instance.external_id.as_text().unwrap();
        assert_ne!(id, format!("main-{number:010}"));
        delete_node(&driver, &order).await;
        let theirs = format!("main-{number:010}");
        assert!(cluster.has_namespace(&theirs).unwrap());
    }
    // A record that names another installation's namespace does not make it ours.
    let target = Target::Node {
        node: node(22),
        external_id: Some("main-0000000022".into()),
    };
    delete(&driver, &target).await.unwrap();
    let strangers = Owner {
        system: nodeyard_driver::SystemId::new("another"),
        ..owner("others")
    };
    let listed = driver.list().await.unwrap();
    assert!(
        listed
            .iter()
            .any(|r| strangers.owns_node(&r.tags, node(22)))
    );
    assert!(listed.iter().all(|r| r.kind == ResourceKind::INSTANCES));
    // What a Nodepool before us made goes when its record says so.
    let target = Target::Node {
        node: node(21),
        external_id: Some("main-0000000021".into()),
    };
    delete(&driver, &target).await.unwrap();
    assert!(!cluster.has_namespace("main-0000000021").unwrap());
    for name in ["main-0000000020", "main-0000000022"] {
        cluster.kubectl(&["delete", "namespace", name]).unwrap();
    }
}
