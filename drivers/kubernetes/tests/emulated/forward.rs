//! SSH pods behind tunnels.

use std::sync::Arc;

use nodeyard_model::ConnectionPort;
use tokio::net::TcpStream;

use crate::cluster::EmulatedCluster;
use crate::common::{create, delete_node, driver, options, order};

/// An address of this machine at which only this test listens.
const HOST: &str = "127.0.0.78";

#[tokio::test]
async fn a_new_tunnel_does_not_take_the_port_of_a_node_after_a_restart() {
    for (system, provider, kind) in [
        ("namespaces", "kubernetes", "type: pod, "),
        ("projects", "openshift", "type: pod, "),
        ("pods", "openshiftpods", ""),
    ] {
        let cluster = Arc::new(EmulatedCluster::default());
        cluster.add_namespace("main", &serde_json::Value::Null);
        let label = format!(
            "{kind}image: i, ssh: {{expose: forward, external-address: {HOST}, port-range: [20000, 20001], \
             host-key-checking: false}}"
        );
        let make = || driver(&cluster, options(system, provider, &label));
        // Both would get the same port if it were free.
        let orders = [1, 3].map(|number| order(system, number));
        let first = make();
        let before = create(&first, &orders[0]).await.unwrap();
        assert_eq!(before.connection_port, Some(ConnectionPort::Number(20001)));
        drop(first);
        let second = make();
        let after = create(&second, &orders[1]).await.unwrap();
        assert_eq!(after.connection_port, Some(ConnectionPort::Number(20000)));
        TcpStream::connect((HOST, 20001)).await.unwrap();
        for order in &orders {
            delete_node(&second, order).await;
        }
    }
}
