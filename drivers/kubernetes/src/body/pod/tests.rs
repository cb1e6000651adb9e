use serde_json::{Value, json};

use super::*;
use crate::testing;

fn body(driver: &str, holder: HolderKind, text: &str) -> Value {
    let label = testing::label(driver, text);
    let labels = Map::from_iter([("a".to_owned(), "b".into())]);
    let plan = PodPlan {
        name: "small",
        label: &label,
        holder,
        labels,
        annotations: Map::new(),
        host_keys: None,
    };
    plan.body().unwrap()
}

fn kubernetes(text: &str) -> Value {
    body("kubernetes", HolderKind::Namespace, text)
}

#[test]
fn the_smallest_pod_is_nodepools() {
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "small", "labels": {"a": "b"}, "annotations": {}},
        "spec": {"containers": [{
            "name": "small",
            "image": "i",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", "-c"],
            "args": ["while true; do sleep 30; done;"],
            "env": [],
        }]},
    });
    assert_eq!(kubernetes("type: pod, image: i"), expected);
    let mut openshift = expected;
    openshift["spec"]["imagePullSecrets"] = json!([]);
    assert_eq!(
        body("openshift", HolderKind::Project, "type: pod, image: i"),
        openshift
    );
}

#[test]
fn every_option_has_its_place() {
    let made = kubernetes(
        "type: pod, image: i, image-pull: Always, cpu: 2, memory: 512, storage: 10, cpu-limit: 4, memory-limit: 1024, \
         storage-limit: 20, gpu: 1, gpu-resource: nvidia.com/gpu, env: [{name: A, value: b}], node-selector: {disk: ssd}, \
         scheduler-name: mine, privileged: false, volumes: [{name: v, emptyDir: {}}], \
         volume-mounts: [{name: v, mountPath: /v}], annotations: {note: x}, restart-policy: Never, \
         service-account-name: runner, automount-service-account-token: false, image-pull-secrets: [{name: s}]",
    );
    assert_eq!(made["metadata"]["annotations"], json!({"note": "x"}));
    let spec = json!({
        "containers": [{
            "name": "small",
            "image": "i",
            "imagePullPolicy": "Always",
            "command": ["/bin/sh", "-c"],
            "args": ["while true; do sleep 30; done;"],
            "env": [{"name": "A", "value": "b"}],
            "resources": {
                "requests": {"cpu": 2, "memory": "512Mi", "ephemeral-storage": "10M", "nvidia.com/gpu": "1.00"},
                "limits": {"cpu": 4, "memory": "1024Mi", "ephemeral-storage": "20M", "nvidia.com/gpu": "1.00"},
            },
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "securityContext": {"privileged": false},
        }],
        "imagePullSecrets": [{"name": "s"}],
        "nodeSelector": {"disk": "ssd"},
        "schedulerName": "mine",
        "volumes": [{"name": "v", "emptyDir": {}}],
        "restartPolicy": "Never",
        "serviceAccountName": "runner",
        "automountServiceAccountToken": false,
    });
    assert_eq!(made["spec"], spec);
}

#[test]
fn a_specification_is_sent_as_it_is() {
    let made =
        kubernetes("type: pod, spec: {containers: [{name: c, image: i}], keyOfTheFuture: [1]}");
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "keyOfTheFuture": [1]});
    assert_eq!(made["spec"], spec);
}

#[test]
fn an_ssh_pod_runs_what_its_image_runs() {
    let made =
        kubernetes("type: pod, image: i, ssh: {port: 2222, authorized-keys: [ssh-ed25519 AAAA]}");
    let container = &made["spec"]["containers"][0];
    assert_eq!(container.get("command"), None);
    assert_eq!(
        container["ports"],
        json!([{"name": "ssh", "containerPort": 2222}])
    );
    assert_eq!(
        container["readinessProbe"]["tcpSocket"],
        json!({"port": 2222})
    );
    assert_eq!(
        container["volumeMounts"][0]["mountPath"],
        "/etc/ssh/authorized_keys.d/zuul"
    );
    let told = kubernetes("type: pod, image: i, ssh: {command: [/run-it]}");
    assert_eq!(told["spec"]["containers"][0]["command"], json!(["/run-it"]));
    let kept = kubernetes("type: pod, image: i, ssh: {keepalive: true}");
    assert_eq!(
        kept["spec"]["containers"][0]["command"],
        json!(["/bin/sh", "-c"])
    );
}

#[test]
fn a_side_car_shares_a_volume_with_those_it_is_to() {
    let made = kubernetes(
        "type: pod, spec: {containers: [{name: a, image: i}, {name: b, image: i}]}, \
         git-sidecar: {image: g, mount-in: b, size-limit: 1Gi}",
    );
    let spec = &made["spec"];
    assert_eq!(spec["containers"][0].get("volumeMounts"), None);
    let mount = json!([{"name": "zuul-git", "mountPath": "/zuul/git"}]);
    assert_eq!(spec["containers"][1]["volumeMounts"], mount);
    assert_eq!(spec["containers"][2]["name"], "git-sidecar");
    assert_eq!(spec["containers"][2]["volumeMounts"], mount);
    assert_eq!(
        spec["volumes"],
        json!([{"name": "zuul-git", "emptyDir": {"sizeLimit": "1Gi"}}])
    );
    assert_eq!(made["metadata"]["annotations"][DEFAULT_CONTAINER], "a");
}

#[test]
fn two_side_cars_are_one_too_many() {
    let label = testing::label(
        "kubernetes",
        "type: pod, spec: {containers: [{name: git-sidecar, image: i}]}, git-sidecar: {image: g}",
    );
    let plan = PodPlan {
        name: "small",
        label: &label,
        holder: HolderKind::Namespace,
        labels: Map::new(),
        annotations: Map::new(),
        host_keys: None,
    };
    assert!(plan.body().is_err());
}
