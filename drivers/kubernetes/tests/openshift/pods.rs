//! Pods in projects of their own, and in one that they share.

use std::time::{Duration, Instant};

use nodeyard_driver::{Machines as _, Target};
use nodeyard_model::ConnectionPort;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{
    HOME, PATIENCE, account, bed, create, credentials, delete, delete_node, driver_as, kubectl_as,
    options, options_named, order, order_named, write_kubeconfig,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_in_a_project_of_its_own() {
    let Some(bed) = bed() else { return };
    let label = format!("type: pod, image: '{}'", bed.cluster().image());
    let driver = bed.driver(options("projectpod", "openshift", &label));
    let order = order("projectpod", 41);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("kubectl"));
    let given = credentials(&instance);
    assert_eq!(given["pod"], "small");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    write_kubeconfig(bed.cluster(), &file, given["token"].as_str().unwrap());
    let output = kubectl_as(bed.cluster(), &file)
        .args([
            "exec",
            "small",
            "--namespace=main-0000000041",
            "--",
            "echo",
            "here",
        ])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n");
    delete_node(&driver, &order).await;
    bed.goes("main-0000000041").await;
}

/// Pools are projects that exist already, and one's name is the beginning of another's.
#[tokio::test(flavor = "multi_thread")]
async fn pods_share_a_project() {
    let Some(bed) = bed() else { return };
    let cluster = bed.cluster();
    for name in ["shared", "shared-more"] {
        let request = format!(
            r#"{{"apiVersion": "project.openshift.io/v1", "kind": "ProjectRequest", "metadata": {{"name": "{name}"}}}}"#
        );
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("request.json");
        std::fs::write(&file, request).unwrap();
        cluster
            .kubectl(&["create", "-f", file.to_str().unwrap()])
            .unwrap();
    }
    let token = account(cluster, "podmaker");
    let subject = format!("--serviceaccount={HOME}:podmaker");
    let binding = [
        "create",
        "rolebinding",
        "podmaker",
        "--clusterrole=edit",
        &subject,
    ];
    cluster
        .kubectl(&[&binding[..], &["--namespace=shared-more"]].concat())
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    write_kubeconfig(cluster, &file, &token);

    let label = format!("image: '{}', cpu: 1", cluster.image());
    let options = options_named("shared", "openshiftpods", "shared-more", "small", &label);
    let driver = driver_as(&file, options);
    let orders = [42, 43].map(|number| order_named("shared", number, "shared-more", "small"));
    for order in &orders {
        let instance = create(&driver, order).await.unwrap();
        let pod = format!("small-{}", order.node);
        assert_eq!(
            instance.external_id.as_text(),
            Some(format!("shared-more-{pod}"))
        );
        assert_eq!(instance.interface_ip.as_deref(), Some(pod.as_str()));
        let given = credentials(&instance);
        assert_eq!(given["token"], token.as_str());
        assert_eq!(given["namespace"], "shared-more");
        assert_eq!(given["pod"], pod.as_str());
        assert!(given["ca_crt"].is_string());
    }
    assert_eq!(driver.list().await.unwrap().len(), 2);
    let id = format!("shared-more-small-{}", orders[0].node);
    let target = Target::Node {
        node: orders[0].node,
        external_id: Some(id.as_str().into()),
    };
    delete(&driver, &target).await.unwrap();
    assert_eq!(driver.list().await.unwrap().len(), 1);
    delete_node(&driver, &orders[1]).await;
    assert!(driver.list().await.unwrap().is_empty());
    assert!(bed.is_there("shared") && bed.is_there("shared-more"));
}

/// Nobody tells what becomes of pods in projects: whoever starts later asks, and finds the way to the pod again.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_into_a_project_is_found_again() {
    let Some(bed) = bed() else { return };
    let label = format!(
        "type: pod, image: '{}', ssh: {{expose: forward}}",
        bed.cluster().image()
    );
    let first = bed.driver(options("tunnel", "openshift", &label));
    let order = order("tunnel", 44);
    let instance = create(&first, &order).await.unwrap();
    let Some(ConnectionPort::Number(port)) = instance.connection_port else {
        panic!("{:?}", instance.connection_port);
    };
    let answers = async || TcpStream::connect(("127.0.0.1", port)).await.is_ok();
    let maintained = timeout(Duration::from_secs(1), first.run_background()).await;
    assert!(maintained.is_err(), "{maintained:?}");
    assert!(answers().await, "it stays while the pod is there");
    let deadline = Instant::now() + PATIENCE;
    drop(first);
    while answers().await {
        assert!(Instant::now() < deadline, "it still listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let second = bed.driver(options("tunnel", "openshift", &label));
    let found = async {
        while !answers().await {
            assert!(Instant::now() < deadline, "no way to the pod");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        ended = second.run_background() => panic!("{ended:?}"),
        () = found => {}
    }
    delete_node(&second, &order).await;
    bed.goes("main-0000000044").await;
}
