//! OpenShift's projects on a cluster that has none: an emulation of ours, which shows the shape of the calls and not the
//! behaviour of OpenShift.
//!
//! As there, a project is a namespace seen by a user: it is asked for with a request that keeps a description and no
//! labels, and its list cannot be narrowed down.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use nodeyard_driver::{Driver as _, Target};
use serde_json::{Value, json};

use crate::common::{
    cluster, create, credentials, delete, delete_node, driver_through, json as read, node, options,
    options_named, order, order_named, owner,
};
use crate::service::{Answer, Between, Through, answer, config, pass, refusal};

const GROUP: &str = "/apis/project.openshift.io/v1";

struct EmulatedProjects;

impl EmulatedProjects {
    fn project(mut namespace: Value) -> Value {
        namespace["apiVersion"] = "project.openshift.io/v1".into();
        namespace["kind"] = "Project".into();
        namespace
    }

    async fn request_project(request: Request<Body>, cluster: &Client) -> Answer {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let wanted: Value = serde_json::from_slice(&body).unwrap();
        let name = wanted["metadata"]["name"].as_str().unwrap();
        if name.starts_with("openshift-") || name.starts_with("kube-") {
            let message = format!("cannot request a project with the name \"{name}\"");
            return refusal(403, "Forbidden", &message);
        }
        let namespace = json!({"metadata": {
            "name": name,
            "annotations": {"openshift.io/description": wanted["description"]},
        }});
        let request =
            Request::post("/api/v1/namespaces").header("content-type", "application/json");
        let request = request.body(namespace.to_string().into_bytes()).unwrap();
        match cluster.request::<Value>(request).await {
            Ok(made) => answer(201, &Self::project(made)),
            Err(kube::Error::Api(status)) => refusal(status.code, &status.reason, &status.message),
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl Between for EmulatedProjects {
    async fn call(&self, request: Request<Body>, cluster: &Client) -> Answer {
        let path = request.uri().path().to_owned();
        let Some(of_group) = path.strip_prefix(GROUP) else {
            // A user sees no namespaces.
            let sees = request.method() == Method::GET || request.method() == Method::POST;
            let namespaces = path.trim_end_matches('/') == "/api/v1/namespaces";
            if sees && namespaces {
                return refusal(403, "Forbidden", "namespaces is forbidden");
            }
            return pass(request, cluster).await;
        };
        if of_group == "/projectrequests" {
            return Self::request_project(request, cluster).await;
        }
        let path = format!(
            "/api/v1/namespaces{}",
            of_group.strip_prefix("/projects").unwrap()
        );
        let (mut parts, body) = request.into_parts();
        parts.uri = path.parse().unwrap();
        pass(Request::from_parts(parts, body), cluster).await
    }
}

async fn driver(
    cluster: &nodeyard_testbeds::Cluster,
    options: nodeyard_driver_kubernetes::Options,
) -> nodeyard_driver_kubernetes::KubernetesDriver {
    let connect = Through {
        config: config(cluster).await,
        between: Arc::new(EmulatedProjects),
    };
    driver_through(options, connect)
}

#[tokio::test(flavor = "multi_thread")]
async fn emulated_project_from_its_order_to_its_end() {
    let Some(cluster) = cluster() else { return };
    let driver = driver(
        cluster,
        options("project", "openshift", "type: project, cpu: 3"),
    )
    .await;
    let order = order("project", 40);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("project"));
    let given = credentials(&instance);
    assert_eq!(given["namespace"], "main-0000000040");
    assert_eq!(given.get("name"), None);
    let binding = read(
        cluster,
        &[
            "get",
            "rolebinding",
            "admin-0",
            "--namespace",
            "main-0000000040",
        ],
    );
    assert_eq!(binding["roleRef"]["name"], "admin");
    let binding = [
        "get",
        "rolebinding",
        "zuul-image-builder",
        "--namespace",
        "main-0000000040",
    ];
    assert_eq!(
        read(cluster, &binding)["roleRef"]["name"],
        "system:image-builder"
    );
    // Labels did not survive, and yet it is known whose it is and what it takes.
    let listed = driver.list().await.unwrap();
    let ours: Vec<_> = listed
        .iter()
        .filter(|r| owner("project").owns_node(&r.tags, node(40)))
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(
        ours[0].takes,
        driver.cost(&"main".into(), &"small".into()).await.unwrap()
    );
    delete_node(&driver, &order).await;
    assert!(
        cluster
            .kubectl(&["get", "namespace", "main-0000000040"])
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn emulated_project_with_a_pod() {
    let Some(cluster) = cluster() else { return };
    let label = format!("type: pod, image: '{}'", cluster.image());
    let driver = driver(cluster, options("projectpod", "openshift", &label)).await;
    let order = order("projectpod", 41);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.connection_type.as_deref(), Some("kubectl"));
    assert_eq!(credentials(&instance)["pod"], "small");
    delete_node(&driver, &order).await;
}

/// Pools are projects that exist already, and one's name is the beginning of another's.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_openshift_share_a_project() {
    let Some(cluster) = cluster() else { return };
    for name in ["shared", "shared-more"] {
        cluster.kubectl(&["create", "namespace", name]).unwrap();
    }
    cluster
        .kubectl(&[
            "create",
            "serviceaccount",
            "nodepool",
            "--namespace=shared-more",
        ])
        .unwrap();
    cluster
        .kubectl(&[
            "create",
            "rolebinding",
            "nodepool",
            "--clusterrole=admin",
            "--serviceaccount=shared-more:nodepool",
            "--namespace=shared-more",
        ])
        .unwrap();
    let token = cluster
        .kubectl(&["create", "token", "nodepool", "--namespace=shared-more"])
        .unwrap();
    let mut config = config(cluster).await;
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.clone().into()),
        ..Default::default()
    };
    let label = format!("image: '{}', cpu: 1", cluster.image());
    let options = options_named("shared", "openshiftpods", "shared-more", "small", &label);
    let connect = Through {
        config,
        between: Arc::new(EmulatedProjects),
    };
    let driver = driver_through(options, connect);
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
    let listed = driver.list().await.unwrap();
    assert_eq!(listed.len(), 2);
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
    assert!(driver.list().await.unwrap().is_empty());
    for name in ["shared", "shared-more"] {
        cluster.kubectl(&["get", "namespace", name]).unwrap();
        cluster
            .kubectl(&["delete", "namespace", name, "--wait=false"])
            .unwrap();
    }
}
