//! The objects that make the SSH server of a pod reachable.

use nodeyard_config::{Expose, SshAccess};
use serde_json::{Map, Value, json};

use super::metadata::texts;
use super::pod::keys_name;
use crate::api::put;
use crate::names;

/// A pod that has an SSH server.
pub(crate) struct SshPlan<'a> {
    pub(crate) pod: &'a str,
    pub(crate) node: String,
    pub(crate) ssh: &'a SshAccess,
}

/// Host keys from a secret.
#[derive(Debug)]
pub(crate) struct HostKeys {
    /// The name of the secret in the namespace of the pod.
    pub(crate) secret: String,
    /// Its files to mount in `/etc/ssh`.
    pub(crate) files: Vec<String>,
    /// The public keys, as `<type> <base64>`.
    pub(crate) public: Vec<String>,
    /// The secret, if it has to be copied.
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
            // Keeps the client's address, and uses the node on which the pod runs.
            put(&mut spec, "externalTrafficPolicy", "Local".into());
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    }

    /// Returns None if the label has no keys: then the image has them.
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

    /// Returns None if connections from everywhere are allowed.
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
