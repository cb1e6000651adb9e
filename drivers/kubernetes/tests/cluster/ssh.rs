//! Pods that are handed out as SSH machines.

use std::path::Path;
use std::process::Command;

use nodeyard_driver::{Instance, Machines as _};
use nodeyard_model::ConnectionPort;

use crate::common::{
    PATIENCE, cluster, create, delete_node, driver, json, options, order, own_cluster,
};

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
    let Some(cluster) = own_cluster() else { return };
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

/// Whoever starts later finds the way to the pod again, at the same port.
#[tokio::test(flavor = "multi_thread")]
async fn ssh_through_this_process() {
    let Some(cluster) = cluster() else { return };
    let directory = tempfile::tempdir().unwrap();
    let public = key(directory.path());
    let label = format!(
        "type: pod, image: '{}', ssh: {{authorized-keys: ['{public}'], expose: forward, allow-from: [127.0.0.0/8]}}",
        cluster.image()
    );
    let make = || driver(cluster, options("forward", "kubernetes", &label));
    let first = make();
    let order = order("forward", 65);
    let instance = create(&first, &order).await.unwrap();
    assert_eq!(instance.interface_ip.as_deref(), Some("127.0.0.1"));
    assert_eq!(log_in(directory.path(), &instance), "zuul\nsmall\n");
    let services = ["get", "services", "--namespace", "main-0000000065"];
    assert_eq!(json(cluster, &services)["items"], serde_json::json!([]));

    let Some(ConnectionPort::Number(port)) = instance.connection_port else {
        panic!("{:?}", instance.connection_port);
    };
    let answers = async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_ok()
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    drop(first);
    while answers().await {
        assert!(std::time::Instant::now() < deadline, "it still listens");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let second = make();
    let found = async {
        while !answers().await {
            assert!(std::time::Instant::now() < deadline, "no way to the pod");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        ended = second.run_background() => panic!("{ended:?}"),
        () = found => {}
    }
    assert_eq!(log_in(directory.path(), &instance), "zuul\nsmall\n");
    delete_node(&second, &order).await;
    while answers().await {
        assert!(
            std::time::Instant::now() < deadline,
            "the way leads nowhere"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// A secret with the key pair in the directory as host key.
fn host_key_secret(
    cluster: &nodeyard_testbeds::Cluster,
    name: &str,
    private: &Path,
    public: &Path,
) {
    let file = |name: &str, path: &Path| format!("--from-file={name}={}", path.display());
    let files = [
        file("ssh_host_ed25519_key", private),
        file("ssh_host_ed25519_key.pub", public),
    ];
    cluster
        .kubectl(&["create", "secret", "generic", name, &files[0], &files[1]])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn host_keys_are_those_of_the_secret_or_nobody_is_let_in() {
    let Some(cluster) = own_cluster() else { return };
    let [login, host, other] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let public = key(login.path());
    let (host_key, _) = (key(host.path()), key(other.path()));
    let private = host.path().join("key");
    host_key_secret(cluster, "right", &private, &host.path().join("key.pub"));
    // The public half is another key's, as if somebody else answered.
    host_key_secret(cluster, "wrong", &private, &other.path().join("key.pub"));
    let options_with = |secret: &str| {
        let label = format!(
            "type: pod, image: '{}', ssh: {{authorized-keys: ['{public}'], host-key-secret: default/{secret}}}",
            cluster.image()
        );
        options("hostkeys", "kubernetes", &label)
    };
    let driver_with_right = driver(cluster, options_with("right"));
    let right = order("hostkeys", 66);
    // The image makes keys of other kinds for itself, which nobody vouches for.
    let instance = create(&driver_with_right, &right).await.unwrap();
    let shown: Vec<&str> = instance.host_keys.iter().map(|key| &**key).collect();
    assert_eq!(shown, [host_key.as_str()]);
    assert_eq!(log_in(login.path(), &instance), "zuul\nsmall\n");
    delete_node(&driver_with_right, &right).await;

    let driver_with_wrong = driver(cluster, options_with("wrong"));
    let wrong = order("hostkeys", 67);
    let (error, _) = create(&driver_with_wrong, &wrong).await.unwrap_err();
    assert!(
        error.to_string().contains("no host key of secret"),
        "{error}"
    );
    delete_node(&driver_with_wrong, &wrong).await;
    for name in ["right", "wrong"] {
        cluster.kubectl(&["delete", "secret", name]).unwrap();
    }
}

/// There is no load balancer here: what is asked for is looked at, and its part is played by the test.
#[tokio::test(flavor = "multi_thread")]
async fn emulated_load_balancer_gives_the_address() {
    let Some(cluster) = own_cluster() else { return };
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
