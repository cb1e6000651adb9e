//! Projects, from their order to their end.

use std::time::{Duration, Instant};

use nodeyard_driver::Machines as _;
use nodeyard_driver_kubernetes::KubernetesDriver;
use serde_json::{Value, json};

use crate::common::{
    Bed, HOME, PATIENCE, bed, create, credentials, delete_node, kubectl_as, node, options, order,
    owner, write_kubeconfig,
};

/// Lists show a project a moment after it was made.
async fn listed(driver: &KubernetesDriver, system: &str, number: u32) -> nodeyard_driver::Resource {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = driver.list().await.unwrap();
        let mut ours = all
            .into_iter()
            .filter(|r| owner(system).owns_node(&r.tags, node(number)));
        if let Some(found) = ours.next() {
            return found;
        }
        assert!(Instant::now() < deadline, "it is in no list");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What a job can see and do in its project, and that it is nobody outside of it.
async fn use_as_a_job(bed: &Bed, token: &str, project: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    write_kubeconfig(bed.cluster(), &file, token);
    let run = |arguments: &[&str]| {
        let output = kubectl_as(bed.cluster(), &file)
            .args(arguments)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(told)
    };
    let space = format!("--namespace={project}");
    assert!(run(&["create", "deployment", "web", "--image=i", &space]).is_some());
    assert!(run(&["get", "secrets", "--namespace=openshift-infra"]).is_none());
    let seen = format!("project.project.openshift.io/{project}");
    let deadline = Instant::now() + PATIENCE;
    while run(&["get", "projects", "-o", "name"]).as_deref() != Some(&*seen) {
        assert!(
            Instant::now() < deadline,
            "it sees other projects than its own"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_from_its_order_to_its_end() {
    let Some(bed) = bed() else { return };
    // What comes with OpenShift, and tells everybody where the registry is.
    let stream = json!({
        "apiVersion": "image.openshift.io/v1", "kind": "ImageStream",
        "metadata": {"name": "cli", "namespace": "openshift"},
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stream.json");
    std::fs::write(&file, stream.to_string()).unwrap();
    bed.cluster()
        .kubectl(&["apply", "-f", file.to_str().unwrap()])
        .unwrap();

    let driver = bed.driver(options("project", "openshift", "type: project, cpu: 3"));
    let order = order("project", 40);
    let name = "main-0000000040";
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("project"));
    let given = credentials(&instance);
    assert_eq!(given["namespace"], name);
    assert_eq!(given.get("name"), None);

    let project = bed.read(&["get", "project", name]);
    let requester = format!("system:serviceaccount:{HOME}:provider");
    assert_eq!(
        project["metadata"]["annotations"]["openshift.io/requester"],
        requester
    );
    for (binding, role) in [
        ("admin-0", "admin"),
        ("zuul-image-builder", "system:image-builder"),
    ] {
        let binding = bed.read(&["get", "rolebinding", binding, "--namespace", name]);
        assert_eq!(binding["roleRef"]["name"], role);
    }
    let properties: Value = instance.node_properties.decode().unwrap();
    let registry = &properties["registry"];
    assert_eq!(
        registry["host"],
        "image-registry.openshift-image-registry.svc:5000"
    );
    assert_eq!(registry["namespace"], name);
    let secret = registry["pull_secret"].as_str().unwrap();
    let secret = bed.read(&["get", "secret", secret, "--namespace", name]);
    assert_eq!(secret["type"], "kubernetes.io/dockercfg");

    use_as_a_job(bed, given["token"].as_str().unwrap(), name).await;
    // A user can give a project no labels, and yet it is known whose it is and what it takes.
    let cost = driver.cost(&"main".into(), &"small".into()).await.unwrap();
    assert_eq!(listed(&driver, "project", 40).await.takes, cost);
    delete_node(&driver, &order).await;
    bed.goes(name).await;
    // The right to look at it went with it.
    let output = kubectl_as(bed.cluster(), &bed.provider)
        .args(["get", "project", name])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("Forbidden"), "{told}");
}

/// Before any list shows it: as after a crash in the middle of a launch.
#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_was_just_made_is_found_by_its_node() {
    let Some(bed) = bed() else { return };
    let driver = bed.driver(options(
        "quick",
        "openshift",
        "type: project, registry-access: none",
    ));
    for number in 45..50 {
        let order = order("quick", number);
        create(&driver, &order).await.unwrap();
        delete_node(&driver, &order).await;
        bed.goes(&format!("main-{number:010}")).await;
    }
}
