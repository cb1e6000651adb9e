//! A launcher in a few lines: gives every request the nodes it asks for.

use nodeyard_model::{ConnectionPort, NodeState, RequestId, RequestState, now};
use nodeyard_store::registry::{Patience, Registry};
use tokio::task::JoinHandle;

use crate::testbed::node;

/// Ends when dropped.
pub(crate) struct FakeLauncher(JoinHandle<()>);

impl FakeLauncher {
    pub(crate) fn new(registry: &Registry) -> Self {
        let registry = registry.clone();
        let view = registry.requests().view().unwrap();
        Self(tokio::spawn(async move {
            let mut changes = view.changes();
            loop {
                for item in view.items() {
                    let waits = item.value.state == RequestState::Requested;
                    let possible = item
                        .value
                        .labels
                        .iter()
                        .all(|label| label.as_str() == "small");
                    if waits && possible {
                        serve(&registry, item.id).await;
                    }
                }
                if changes.next().await.is_none() {
                    return;
                }
            }
        }))
    }
}

async fn serve(registry: &Registry, id: RequestId) {
    let requests = registry.requests();
    let Some(mut held) = requests.lock(id, Patience::None).await.unwrap().held() else {
        return;
    };
    if held.value.state != RequestState::Requested {
        return held.guard.release().await.unwrap();
    }
    let mut nodes = Vec::new();
    for label in &held.value.labels {
        let mut node = node(label.as_str(), NodeState::Ready);
        node.allocated_to = Some(id.into());
        node.tenant_name = held.value.tenant_name.clone();
        node.interface_ip = Some("192.0.2.7".into());
        node.connection_type = Some("ssh".into());
        node.connection_port = ConnectionPort::Number(2222);
        node.username = Some("zuul".into());
        node.host_keys = vec!["ssh-ed25519 AAAA".into()];
        nodes.push(registry.nodes().create(&node).await.unwrap().0);
    }
    held.value.nodes = nodes;
    held.value.set_state(RequestState::Fulfilled, now());
    // It may have been taken back meanwhile.
    let _ = requests.store(&held.guard, id, &held.value).await;
    held.guard.release().await.unwrap();
}

impl Drop for FakeLauncher {
    fn drop(&mut self) {
        self.0.abort();
    }
}
