//! Clusters with something between them and the driver: each call passes through a function.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use nodeyard_driver::Error;
use nodeyard_driver_kubernetes::{Connect, Connection};
use nodeyard_testbeds::Cluster;
use serde_json::{Value, json};
use tower::BoxError;

/// What the driver hears instead of the cluster.
pub(crate) type Answer = Result<Response<Body>, BoxError>;

#[async_trait]
pub(crate) trait Between: Send + Sync + 'static {
    async fn call(&self, request: Request<Body>, cluster: &Client) -> Answer;

    /// What the cluster tells by itself.
    async fn watch(&self, request: Request<Body>, cluster: &Client) -> Answer {
        pass(request, cluster).await
    }
}

pub(crate) async fn pass(request: Request<Body>, cluster: &Client) -> Answer {
    cluster.send(request).await.map_err(Into::into)
}

pub(crate) async fn config(cluster: &Cluster) -> Config {
    let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let current = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &current);
    config.await.unwrap()
}

/// A way to a cluster with something in between.
pub(crate) struct Through<B> {
    pub(crate) config: Config,
    pub(crate) between: Arc<B>,
}

impl<B> fmt::Debug for Through<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Through")
    }
}

#[async_trait]
impl<B: Between> Connect for Through<B> {
    async fn connect(&self) -> Result<Connection, Error> {
        let connection = Connection::new(self.config.clone()).await?;
        let client = |watching: bool| {
            let between = Arc::clone(&self.between);
            let cluster = connection.client.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let (between, cluster) = (Arc::clone(&between), cluster.clone());
                async move {
                    if watching {
                        between.watch(request, &cluster).await
                    } else {
                        between.call(request, &cluster).await
                    }
                }
            });
            Client::new(service, "default")
        };
        Ok(Connection {
            client: client(false),
            watching: client(true),
            ..connection
        })
    }
}

pub(crate) fn answer(code: u16, body: &Value) -> Answer {
    let status = StatusCode::from_u16(code).unwrap();
    let body = Body::from(body.to_string().into_bytes());
    Ok(Response::builder().status(status).body(body).unwrap())
}

/// As API servers say no.
pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    answer(code, &status)
}
