//! What can go wrong, and what is said about it.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nodeyard_driver::{ErrorClass, Machines as _, Target};
use nodeyard_driver_kubernetes::{Kubeconfig, Options};
use nodeyard_testbeds::Cluster;

use crate::common::{
    PATIENCE, cluster, create, delete, delete_node, driver, driver_through, json, kubeconfig,
    namespaces, options, order,
};

/// Far longer than a test waits: what fails, fails for another reason than the time.
fn patient(system: &str, label: &str) -> Options {
    Options {
        pod_limit: Duration::from_secs(3600),
        scheduling_timeout: Duration::from_secs(3),
        image_pull_timeout: Duration::from_secs(3),
        ..options(system, "kubernetes", label)
    }
}

/// The class and the text of the failure of a launch.
async fn failure(cluster: &Cluster, options: Options) -> (ErrorClass, String) {
    let system = options.owner.system.to_string();
    let driver = driver(cluster, options);
    let order = order(&system, 34);
    let (error, _) = create(&driver, &order).await.unwrap_err();
    let evidence = driver
        .evidence(&order.pool, &order.label, &"main-0000000034".into())
        .await;
    evidence.unwrap();
    delete_node(&driver, &order).await;
    assert!(namespaces(cluster, &system).is_empty());
    (error.class(), error.to_string())
}

/// These use one namespace, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_can_never_run_fails_with_the_reason() {
    let Some(cluster) = cluster() else { return };
    let image = cluster.image();

    let label = "type: pod, image: '127.0.0.1:9/no/such:image'";
    let (class, text) = failure(cluster, patient("unpullable", label)).await;
    assert_eq!(class, ErrorClass::Failed, "{text}");
    assert!(
        text.contains("127.0.0.1:9/no/such:image") && text.contains("refused"),
        "{text}"
    );

    let label = "type: pod, image: 'localhost/missing:1', image-pull: Never";
    let (class, text) = failure(cluster, patient("never", label)).await;
    assert_eq!(class, ErrorClass::Permanent, "{text}");

    let label = "type: pod, image: 'NOT A NAME'";
    let (class, text) = failure(cluster, patient("invalid", label)).await;
    assert_eq!(class, ErrorClass::Permanent, "{text}");

    let label = format!(
        "type: pod, spec: {{containers: [{{name: c, image: '{image}', command: [sh, -c, 'exit 7']}}]}}, ssh: {{}}"
    );
    let (class, text) = failure(cluster, patient("crash", &label)).await;
    assert_eq!(class, ErrorClass::Failed, "{text}");
    assert!(text.contains("exit code 7"), "{text}");

    let label = format!("type: pod, image: '{image}', cpu: 1000");
    let (class, text) = failure(cluster, patient("unschedulable", &label)).await;
    assert_eq!(class, ErrorClass::Capacity, "{text}");
    assert!(text.contains("Insufficient cpu"), "{text}");

    let label = format!("type: pod, image: '{image}', namespace-quota: {{pods: '0'}}");
    let (class, text) = failure(cluster, patient("quota", &label)).await;
    assert_eq!(class, ErrorClass::Quota, "{text}");
    assert!(text.contains("exceeded quota"), "{text}");

    let label = format!(
        "type: pod, spec: {{restartPolicy: Never, containers: [{{name: c, image: '{image}', command: ['true']}}]}}, ssh: {{}}"
    );
    let (class, text) = failure(cluster, patient("ended", &label)).await;
    assert_eq!(class, ErrorClass::Failed, "{text}");
    assert!(text.contains("Succeeded"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_somebody_deletes_is_not_waited_for() {
    let Some(cluster) = cluster() else { return };
    // It runs, but is never ready.
    let label = format!("type: pod, image: '{}', ssh: {{port: 99}}", cluster.image());
    let driver = driver(cluster, patient("deleted", &label));
    let order = order("deleted", 30);
    let launch = create(&driver, &order);
    let sabotage = async {
        let running = [
            "get",
            "pod",
            "small",
            "--namespace",
            "main-0000000030",
            "-o",
            "jsonpath={.status.phase}",
        ];
        while cluster.kubectl(&running).ok().as_deref() != Some("Running") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let delete = [
            "delete",
            "pod",
            "small",
            "--namespace",
            "main-0000000030",
            "--grace-period=1",
            "--wait=false",
        ];
        cluster.kubectl(&delete).unwrap();
    };
    let (launch, ()) = tokio::join!(launch, sabotage);
    let (error, _) = launch.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    assert!(error.to_string().contains("deleted"), "{error}");
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_never_goes_is_reported_with_the_reason() {
    let Some(cluster) = cluster() else { return };
    let make = |limit| Options {
        delete_limit: limit,
        ..options("hangs", "kubernetes", "type: namespace")
    };
    let patient = driver(cluster, make(PATIENCE));
    let driver = driver(cluster, make(Duration::from_secs(2)));
    let order = order("hangs", 31);
    create(&driver, &order).await.unwrap();
    let name = "main-0000000031";
    let held = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/hold"]}}"#;
    let mut apply = cluster.kubectl_command();
    apply
        .args(["create", "--namespace", name, "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut apply = apply.spawn().unwrap();
    apply
        .stdin
        .take()
        .unwrap()
        .write_all(held.as_bytes())
        .unwrap();
    assert!(apply.wait().unwrap().success());

    let target = Target::Node {
        node: order.node,
        external_id: Some(name.into()),
    };
    let deadline = Instant::now() + PATIENCE;
    // The cluster looks at a namespace some seconds after its deletion, and has no reason to tell before.
    let mut told = String::new();
    while !told.contains("example.com/hold") {
        assert!(Instant::now() < deadline, "{told}");
        let error = delete(&driver, &target).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        told = error.to_string();
    }

    let release = r#"{"metadata": {"finalizers": null}}"#;
    cluster
        .kubectl(&[
            "patch",
            "configmap",
            "held",
            "--namespace",
            name,
            "--type=merge",
            "-p",
            release,
        ])
        .unwrap();
    delete(&patient, &target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_cannot_be_used_is_said_with_the_remedy() {
    let order = order("nowhere", 1);
    let missing = Kubeconfig {
        file: Some("/no/such/kubeconfig".into()),
        context: None,
    };
    let make = || options("nowhere", "kubernetes", "type: namespace");
    let (error, _) = create(&driver_through(make(), missing), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("KUBECONFIG"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let nobody = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}"#;
    std::fs::write(&file, nobody).unwrap();
    let away = Kubeconfig {
        file: Some(file.clone()),
        context: None,
    };
    let (error, _) = create(&driver_through(make(), away), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);

    let context = Kubeconfig {
        file: Some(file),
        context: Some("other".to_owned()),
    };
    let (error, _) = create(&driver_through(make(), context), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("other"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_renewed_are_read_again() {
    let Some(cluster) = cluster() else { return };
    let good = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut bad: serde_json::Value = serde_json::from_str(&good).unwrap();
    bad["users"][0]["user"] = serde_json::json!({"token": "expired"});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, bad.to_string()).unwrap();
    let connect = Kubeconfig {
        file: Some(file.clone()),
        ..kubeconfig(cluster)
    };
    let driver = driver_through(options("renewed", "kubernetes", "type: namespace"), connect);
    let order = order("renewed", 32);
    let (error, _) = create(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("renew"), "{error}");
    std::fs::write(&file, good).unwrap();
    create(&driver, &order).await.unwrap();
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() {
    let Some(cluster) = cluster() else { return };
    cluster
        .kubectl(&["create", "serviceaccount", "weak", "--namespace=default"])
        .unwrap();
    let token = cluster
        .kubectl(&["create", "token", "weak", "--namespace=default"])
        .unwrap();
    let file = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut weak: serde_json::Value = serde_json::from_str(&file).unwrap();
    weak["users"][0]["user"] = serde_json::json!({"token": token});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, weak.to_string()).unwrap();
    let connect = Kubeconfig {
        file: Some(file),
        context: None,
    };
    let driver = driver_through(options("weak", "kubernetes", "type: namespace"), connect);
    let (error, _) = create(&driver, &order("weak", 33)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(
        error
            .to_string()
            .contains("cannot create resource \"namespaces\""),
        "{error}"
    );
    let accounts = json(
        cluster,
        &["get", "serviceaccount", "weak", "--namespace=default"],
    );
    assert_eq!(accounts["kind"], "ServiceAccount");
}
