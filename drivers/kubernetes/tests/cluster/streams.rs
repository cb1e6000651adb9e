//! Streams that end, and calls that are refused once: a launch goes on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::Request;
use kube::Client;
use kube::client::Body;

use crate::common::{cluster, create, delete_node, driver_through, namespaces, options, order};
use crate::service::{Answer, Between, Through, answer, config, pass, refusal};

/// Tells nothing: each stream ends at once, says that it is too old, or is refused.
#[derive(Default)]
struct DeafBetween {
    watches: AtomicUsize,
}

#[async_trait]
impl Between for DeafBetween {
    async fn call(&self, request: Request<Body>, cluster: &Client) -> Answer {
        pass(request, cluster).await
    }

    async fn watch(&self, request: Request<Body>, cluster: &Client) -> Answer {
        let is_stream = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        if !is_stream {
            return pass(request, cluster).await;
        }
        match self.watches.fetch_add(1, Ordering::SeqCst) % 3 {
            0 => Ok(http::Response::new(Body::empty())),
            1 => answer(
                200,
                &serde_json::json!({"type": "ERROR", "object": {
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
                    "reason": "Expired", "message": "too old resource version",
                }}),
            ),
            _ => refusal(500, "InternalError", "no stream"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_needs_nothing_that_the_cluster_tells_by_itself() {
    let Some(cluster) = cluster() else { return };
    let between = Arc::new(DeafBetween::default());
    let connect = Through {
        config: config(cluster).await,
        between: Arc::clone(&between),
    };
    let label = format!("type: pod, image: '{}'", cluster.image());
    let driver = driver_through(options("deaf", "kubernetes", &label), connect);
    let order = order("deaf", 50);
    create(&driver, &order).await.unwrap();
    delete_node(&driver, &order).await;
    assert!(namespaces(cluster, "deaf").is_empty());
    assert!(between.watches.load(Ordering::SeqCst) > 0);
}

/// Refuses each call once.
struct ReluctantBetween {
    code: u16,
    reason: &'static str,
    seen: Mutex<HashSet<String>>,
}

#[async_trait]
impl Between for ReluctantBetween {
    async fn call(&self, request: Request<Body>, cluster: &Client) -> Answer {
        let name = format!("{} {}", request.method(), request.uri().path());
        if self.seen.lock().unwrap().insert(name) {
            return refusal(self.code, self.reason, "not now");
        }
        pass(request, cluster).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_everything_once_is_asked_again() {
    let Some(cluster) = cluster() else { return };
    for (number, code, reason) in [
        (51, 409, "Conflict"),
        (52, 410, "Gone"),
        (53, 429, "TooManyRequests"),
        (54, 503, "ServiceUnavailable"),
    ] {
        let connect = Through {
            config: config(cluster).await,
            between: Arc::new(ReluctantBetween {
                code,
                reason,
                seen: Mutex::default(),
            }),
        };
        let driver = driver_through(
            options("reluctant", "kubernetes", "type: namespace"),
            connect,
        );
        let order = order("reluctant", number);
        let mut tries = 0;
        while let Err((error, _)) = create(&driver, &order).await {
            tries += 1;
            assert!(tries < 10, "{code}: {error}");
        }
        let reliable = crate::common::driver(
            cluster,
            options("reluctant", "kubernetes", "type: namespace"),
        );
        delete_node(&reliable, &order).await;
    }
    assert!(namespaces(cluster, "reluctant").is_empty());
}
