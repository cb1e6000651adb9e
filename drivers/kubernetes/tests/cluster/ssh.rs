//! Pods that are handed out as SSH machines.

use std::path::Path;
use std::process::Command;

use nodeyard_driver::Instance;
use nodeyard_model::ConnectionPort;

use crate::common::{cluster, create, delete_node, driver, json, options, order};

/// A key pair, and its public half.
fn key(directory: &Path) -> String {
    let file = directory.join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&file)
        .status()
        .unwrap();
    assert!(made.success());
    let public = std::fs::read_to_string(file.with_extension("pub")).unwrap();
    public
        .split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Logs in as Zuul would: to the address of the node, knowing its host keys and nothing else.
fn log_in(directory: &Path, instance: &Instance) -> String {
    let address = instance.interface_ip.as_deref().unwrap();
    let Some(ConnectionPort::Number(port)) = instance.connection_port else {
        panic!("{:?}", instance.connection_port);
    };
    let known: String = instance
        .host_keys
        .iter()
        .map(|key| format!("[{address}]:{port} {key}\n{address} {key}\n"))
        .collect();
    std::fs::write(directory.join("known"), known).unwrap();
    let output = Command::new("ssh")
        .args([
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
        ])
        .arg(format!(
            "UserKnownHostsFile={}",
            directory.join("known").display()
        ))
        .arg("-i")
        .arg(directory.join("key"))
        .args(["-p", &port.to_string()])
        .arg(format!(
            "{}@{address}",
            instance.username.as_deref().unwrap()
        ))
        .arg("id -un && hostname")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

async fn an_ssh_pod(number: u32, options_of_ssh: &str) {
    let Some(cluster) = cluster().filter(|cluster| cluster.is_own()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let public = key(directory.path());
    let label = format!(
        "type: pod, image: '{}', ssh: {{authorized-keys: ['{public}'], {options_of_ssh}}}",
        cluster.image()
    );
    let driver = driver(cluster, options("ssh", "kubernetes", &label));
    let order = order("ssh", number);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("ssh"));
    assert!(!instance.host_keys.is_empty());
    assert_eq!(log_in(directory.path(), &instance), "zuul\nsmall\n");
    // Nobody has been given a token, so there is none.
    let name = format!("main-{number:010}");
    let accounts = json(cluster, &["get", "serviceaccounts", "--namespace", &name]);
    assert_eq!(
        accounts["items"].as_array().unwrap().len(),
        1,
        "only `default`"
    );
    delete_node(&driver, &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_through_a_service_of_the_cluster() {
    an_ssh_pod(61, "expose: cluster").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_through_a_port_of_the_node() {
    an_ssh_pod(62, "expose: node-port").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_to_the_pod_itself() {
    an_ssh_pod(63, "headless: true, allow-from: [0.0.0.0/0]").await;
}

/// There is no load balancer here: what is asked for is looked at, and its part is played by the test.
#[tokio::test(flavor = "multi_thread")]
async fn emulated_load_balancer_gives_the_address() {
    let Some(cluster) = cluster().filter(|cluster| cluster.is_own()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let public = key(directory.path());
    let label = format!(
        "type: pod, image: '{}', ssh: {{authorized-keys: ['{public}'], expose: load-balancer, \
         service-annotations: {{kind: internal}}}}",
        cluster.image()
    );
    let driver = driver(cluster, options("balancer", "kubernetes", &label));
    let order = order("balancer", 64);
    let balancer = async {
        let service = loop {
            let found = cluster.kubectl(&[
                "get",
                "service",
                "small",
                "--namespace",
                "main-0000000064",
                "-o",
                "json",
            ]);
            match found {
                Ok(found) => break serde_json::from_str::<serde_json::Value>(&found).unwrap(),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            }
        };
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        assert_eq!(service["metadata"]["annotations"]["kind"], "internal");
        let address = service["spec"]["clusterIP"].as_str().unwrap();
        let patch =
            format!(r#"{{"status": {{"loadBalancer": {{"ingress": [{{"ip": "{address}"}}]}}}}}}"#);
        cluster
            .kubectl(&[
                "patch",
                "service",
                "small",
                "--namespace",
                "main-0000000064",
                "--subresource=status",
                "-p",
                &patch,
            ])
            .unwrap();
    };
    let (instance, ()) = tokio::join!(create(&driver, &order), balancer);
    assert_eq!(
        log_in(directory.path(), &instance.unwrap()),
        "zuul\nsmall\n"
    );
    delete_node(&driver, &order).await;
}
