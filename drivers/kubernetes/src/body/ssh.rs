//! What makes an SSH server in a pod reachable.

use nodeyard_config::{Expose, SshAccess};
use serde_json::{Map, Value, json};

use super::marks::texts;
use super::pod::keys_name;
use crate::api::put;
use crate::names;

/// A pod that has an SSH server.
pub(crate) struct SshPlan<'a> {
    pub(crate) pod: &'a str,
    pub(crate) node: String,
    pub(crate) ssh: &'a SshAccess,
}

/// Keys that a secret gives to the SSH server.
#[derive(Debug)]
pub(crate) struct HostKeys {
    /// Where the pod is.
    pub(crate) secret: String,
    /// Files of it that belong into `/etc/ssh`.
    pub(crate) files: Vec<String>,
    /// `<type> <base64>` each.
    pub(crate) public: Vec<String>,
    /// The secret, if it has to be made there.
    pub(crate) copy: Option<Value>,
}

impl SshPlan<'_> {
    pub(crate) fn service(&self) -> Value {
        let kind = match self.ssh.expose {
            Expose::NodePort => "NodePort",
            Expose::LoadBalancer => "LoadBalancer",
            Expose::Cluster | Expose::Gateway | Expose::Forward => "ClusterIP",
        };
        let annotations: Map<_, _> = texts(Some(&self.ssh.service_annotations));
        let metadata = json!({"name": names::service(self.pod), "annotations": annotations});
        let mut spec = json!({
            "type": kind,
            "selector": {"nodepool_node_id": self.node},
            "ports": [{"name": "ssh", "port": self.ssh.port.0, "targetPort": self.ssh.port.0}],
        });
        if self.ssh.expose == Expose::Cluster && self.ssh.headless {
            put(&mut spec, "clusterIP", "None".into());
        }
        if self.ssh.expose == Expose::NodePort {
            // Who connects stays visible, and the node that is connected to is the one with the pod.
            put(&mut spec, "externalTrafficPolicy", "Local".into());
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    }

    /// None if nobody is configured to log in: the image knows by itself.
    pub(crate) fn keys(&self) -> Option<Value> {
        if self.ssh.authorized_keys.is_empty() {
            return None;
        }
        let lines: String = (self.ssh.authorized_keys.iter())
            .map(|key| format!("{}\n", key.trim()))
            .collect();
        Some(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": keys_name(self.pod)},
            "data": {self.ssh.username.as_str(): lines},
        }))
    }

    /// None if anybody may connect.
    pub(crate) fn policy(&self) -> Option<Value> {
        if self.ssh.allow_from.is_empty() {
            return None;
        }
        let from: Vec<_> = (self.ssh.allow_from.iter())
            .map(|network| json!({"ipBlock": {"cidr": network}}))
            .collect();
        Some(json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": names::service(self.pod)},
            "spec": {
                "podSelector": {"matchLabels": {"nodepool_node_id": self.node}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": from, "ports": [{"port": self.ssh.port.0}]}],
            },
        }))
    }
}
