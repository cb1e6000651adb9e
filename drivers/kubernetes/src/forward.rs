//! Tunnels: a listener on this machine that forwards connections to a port of a pod, through the API server.
//!
//! A tunnel needs no objects in the cluster, and no access except that of the driver. Its address is in an annotation of
//! the pod, so that a process that starts later opens the same tunnel again.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use nodeyard_config::SshAccess;
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_model::NodeId;
use serde::{Deserialize, Serialize};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

/// The annotation of a pod with its [`TunnelRoute`].
pub(crate) const FORWARD: &str = "nodeyard/forward";
const LOOPBACK: &str = "127.0.0.1";

/// Namespace and name of a pod.
pub(crate) type PodKey = (String, String);

/// The listening address of a tunnel, and the port of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelRoute {
    pub(crate) host: String,
    pub(crate) port: u16,
    to: u16,
    /// Networks that may connect; empty is all.
    allow_from: Vec<String>,
}

impl TunnelRoute {
    /// Reads the route of a pod, if it has one.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        serde_json::from_str(annotations.get(FORWARD)?).ok()
    }

    fn allowed(&self) -> Vec<IpNet> {
        let networks = self.allow_from.iter();
        networks.filter_map(|text| text.parse().ok()).collect()
    }
}

/// The open tunnels of this process.
#[derive(Default)]
pub(crate) struct Tunnels {
    open: Mutex<HashMap<PodKey, Tunnel>>,
    /// The newest client, for new connections.
    client: Arc<Mutex<Option<Client>>>,
}

struct Tunnel {
    node: NodeId,
    route: TunnelRoute,
    /// Whether the pod has existed; one that has not is still to be created.
    seen: bool,
    task: JoinHandle<()>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tunnels {
    pub(crate) fn use_client(&self, client: &Client) {
        *lock(&self.client) = Some(client.clone());
    }

    /// Opens a tunnel at a free port, or returns the one that is open.
    pub(crate) async fn open(
        &self,
        ssh: &SshAccess,
        node: NodeId,
        pod: PodKey,
    ) -> Result<TunnelRoute, Error> {
        if let Some(tunnel) = lock(&self.open).get(&pod) {
            return Ok(tunnel.route.clone());
        }
        let ports = match ssh.port_range.as_deref() {
            Some([first, last]) => first.0..=last.0,
            _ => 0..=0,
        };
        let host = ssh.external_address.as_deref().unwrap_or(LOOPBACK);
        let listener = bind(host, ports).await?;
        let route = TunnelRoute {
            host: host.to_owned(),
            port: listener.local_addr().map_err(unusable)?.port(),
            to: ssh.port.0,
            allow_from: ssh.allow_from.clone(),
        };
        self.serve(node, pod, route.clone(), listener);
        Ok(route)
    }

    /// Opens a tunnel to an existing pod, unless it is open.
    pub(crate) async fn reopen(
        &self,
        node: NodeId,
        pod: PodKey,
        route: TunnelRoute,
    ) -> Result<(), Error> {
        if let Some(tunnel) = lock(&self.open).get_mut(&pod)
            && tunnel.route == route
        {
            tunnel.seen = true;
            return Ok(());
        }
        let listener = bind(&route.host, route.port..=route.port).await?;
        self.serve(node, pod, route, listener);
        Ok(())
    }

    fn serve(&self, node: NodeId, pod: PodKey, route: TunnelRoute, listener: TcpListener) {
        let client = Arc::clone(&self.client);
        let task = tokio::spawn(accept(listener, pod.clone(), route.clone(), client));
        let tunnel = Tunnel {
            node,
            route,
            seen: false,
            task,
        };
        lock(&self.open).insert(pod, tunnel);
    }

    pub(crate) fn has_tunnel_into(&self, namespace: &str) -> bool {
        lock(&self.open).keys().any(|(of, _)| of == namespace)
    }

    pub(crate) fn close(&self, node: NodeId) {
        lock(&self.open).retain(|_, tunnel| tunnel.node != node);
    }

    /// Closes the tunnels of deleted pods.
    pub(crate) fn close_unless(&self, exists: impl Fn(&PodKey) -> bool) {
        lock(&self.open).retain(|pod, tunnel| !tunnel.seen || exists(pod));
    }
}

async fn bind(host: &str, ports: RangeInclusive<u16>) -> Result<TcpListener, Error> {
    let mut last = None;
    for port in ports {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(unusable(error)),
        }
    }
    let error = Error::new(
        ErrorClass::Capacity,
        format!("all ports of {host} for `expose: forward` are in use; extend `port-range`"),
    );
    Err(match last {
        Some(cause) => error.because(cause),
        None => error,
    })
}

fn unusable(cause: io::Error) -> Error {
    Error::permanent(
        "`expose: forward` cannot listen: `external-address` must be one of this machine",
    )
    .because(cause)
}

async fn accept(
    listener: TcpListener,
    pod: PodKey,
    route: TunnelRoute,
    client: Arc<Mutex<Option<Client>>>,
) {
    let allowed = route.allowed();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, pod = %pod.1, "failed to accept connection to pod");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        if !may_use(&allowed, from.ip()) {
            continue;
        }
        let Some(client) = lock(&client).clone() else {
            continue;
        };
        let (pod, port) = (pod.clone(), route.to);
        // The connection outlives the tunnel, so that it survives a reload of the configuration.
        tokio::spawn(async move {
            if let Err(error) = carry(stream, &pod, port, client).await {
                debug!(error = &*error, pod = %pod.1, "connection to pod broke");
            }
        });
    }
}

fn may_use(allowed: &[IpNet], from: IpAddr) -> bool {
    let from = from.to_canonical();
    allowed.is_empty() || allowed.iter().any(|network| network.contains(&from))
}

async fn carry(
    mut stream: TcpStream,
    (namespace, pod): &PodKey,
    port: u16,
    client: Client,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let _ = stream.set_nodelay(true);
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let mut forwarder = pods.portforward(pod, &[port]).await?;
    if let Some(mut inside) = forwarder.take_stream(port) {
        copy_bidirectional(&mut stream, &mut inside).await?;
    }
    Ok(())
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> TunnelRoute {
        TunnelRoute {
            host: LOOPBACK.to_owned(),
            port,
            to: 22,
            allow_from: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_port_is_for_one_pod() {
        let tunnels = Tunnels::default();
        let port = {
            let listener = bind(LOOPBACK, 0..=0).await.unwrap();
            listener.local_addr().unwrap().port()
        };
        let node: NodeId = "0000000001".parse().unwrap();
        let pod = |name: &str| ("n".to_owned(), name.to_owned());
        for _ in 0..2 {
            tunnels.reopen(node, pod("a"), route(port)).await.unwrap();
        }
        let error = tunnels.reopen(node, pod("b"), route(port)).await;
        assert_eq!(error.unwrap_err().class(), ErrorClass::Capacity);
        tunnels.close_unless(|_| false);
        while bind(LOOPBACK, port..=port).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_route_survives_on_its_pod() {
        let text = serde_json::to_string(&route(20_000)).unwrap();
        let pod: Pod = serde_json::from_value(
            serde_json::json!({"metadata": {"annotations": {FORWARD: text}}}),
        )
        .unwrap();
        assert_eq!(TunnelRoute::of(&pod), Some(route(20_000)));
        for odd in ["", "{}", "20000"] {
            let pod = serde_json::json!({"metadata": {"annotations": {FORWARD: odd}}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(TunnelRoute::of(&pod), None, "{odd}");
        }
    }

    #[tokio::test]
    async fn only_this_machine_listens() {
        let error = bind("192.0.2.1", 0..=0).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent);
    }

    #[test]
    fn networks_may_be_named() {
        let allowed = ["10.0.0.0/8".parse().unwrap()];
        assert!(may_use(&allowed, "10.1.2.3".parse().unwrap()));
        assert!(may_use(&allowed, "::ffff:10.1.2.3".parse().unwrap()));
        assert!(!may_use(&allowed, "192.0.2.1".parse().unwrap()));
        assert!(may_use(&[], "192.0.2.1".parse().unwrap()));
    }
}
