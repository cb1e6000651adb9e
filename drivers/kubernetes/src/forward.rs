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
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use crate::ports;

/// The annotation of a pod with its [`TunnelRoute`].
pub(crate) const FORWARD: &str = "nodeyard/forward";
const LOOPBACK: &str = "127.0.0.1";
/// The ports of labels without `port-range`: below those that the kernel gives to connections and Kubernetes to services, so
/// that nothing takes them while this process restarts.
const DEFAULT_PORTS: RangeInclusive<u16> = 20_000..=29_999;

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
    /// Set when the tunnels of an earlier process have been opened again.
    pub(crate) restored: OnceCell<()>,
}

struct Tunnel {
    node: NodeId,
    route: TunnelRoute,
    /// Whether the cluster has listed the pod; one that it has not may still be created.
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

    /// Opens a tunnel at a free port, or returns the one that is open. Those of an earlier process have to be restored
    /// before: their ports look free until then.
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
            _ => DEFAULT_PORTS,
        };
        let host = ssh.external_address.as_deref().unwrap_or(LOOPBACK);
        let listener = bind(host, ports::in_order(ports, node)).await?;
        let listener = listener.ok_or_else(|| {
            let text = format!(
                "all ports of {host} for `expose: forward` are in use; extend `port-range`"
            );
            Error::new(ErrorClass::Capacity, text)
        })?;
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
        let open = lock(&self.open).get(&pod).map(|open| open.route.clone());
        if open.as_ref() == Some(&route) {
            return Ok(());
        }
        let listener = bind(&route.host, [route.port]).await?;
        let listener = listener.ok_or_else(|| {
            let text = format!(
                "port {} of {}, at which its node is reached, is in use by another program; stop that, or delete the node",
                route.port, route.host
            );
            Error::new(ErrorClass::Capacity, text)
        })?;
        self.serve(node, pod, route, listener);
        Ok(())
    }

    /// Notes that the cluster has listed the pod of a tunnel.
    pub(crate) fn note_listed(&self, pod: &PodKey) {
        if let Some(tunnel) = lock(&self.open).get_mut(pod) {
            tunnel.seen = true;
        }
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

/// Listens at the first of the ports that is free. Returns None if all are in use.
async fn bind(
    host: &str,
    ports: impl IntoIterator<Item = u16, IntoIter: Send>,
) -> Result<Option<TcpListener>, Error> {
    for port in ports {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(unusable(error)),
        }
    }
    Ok(None)
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
            let listener = bind(LOOPBACK, [0]).await.unwrap().unwrap();
            listener.local_addr().unwrap().port()
        };
        let node: NodeId = "0000000001".parse().unwrap();
        let pod = |name: &str| ("n".to_owned(), name.to_owned());
        for _ in 0..2 {
            tunnels.reopen(node, pod("a"), route(port)).await.unwrap();
        }
        let error = tunnels.reopen(node, pod("b"), route(port)).await;
        let error = error.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Capacity);
        assert!(error.to_string().contains(&port.to_string()), "{error}");
        // It may not have been listed yet.
        tunnels.close_unless(|_| false);
        assert!(bind(LOOPBACK, [port]).await.unwrap().is_none());
        tunnels.note_listed(&pod("a"));
        tunnels.close_unless(|_| false);
        while bind(LOOPBACK, [port]).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn no_connection_takes_the_port_of_a_tunnel_during_a_restart() {
        let label =
            crate::testing::label("kubernetes", "type: pod, image: i, ssh: {expose: forward}");
        let tunnels = Tunnels::default();
        let pod = ("n".to_owned(), "a".to_owned());
        let node = "0000000001".parse().unwrap();
        let route = tunnels.open(&label.ssh.unwrap(), node, pod).await.unwrap();
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        assert!(DEFAULT_PORTS.contains(&route.port), "{route:?}");
        assert!(route.port < first, "{route:?}, {first}");
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
        let error = bind("192.0.2.1", [0]).await.unwrap_err();
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
