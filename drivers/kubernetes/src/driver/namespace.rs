//! The namespace of a node: names of the objects in it, and who owns them.

use nodeyard_driver::ExternalId;
use nodeyard_model::NodeId;
use serde_json::{Value, json};

use crate::api::put;
use crate::body::ACCOUNT;

/// Represents a node in a namespace that it shares, and owns all objects of the node there.
#[derive(Debug, Clone)]
pub(super) struct NamespaceMember {
    pub(super) name: String,
    pub(super) uid: String,
}

/// Where the objects of a node are: in a namespace of its own, or in one that it shares with others.
#[derive(Debug, Clone)]
pub(super) struct NodeNamespace {
    pub(super) node: NodeId,
    pub(super) namespace: String,
    pub(super) external_id: ExternalId,
    /// Only in a namespace that is shared by a buildset.
    pub(super) member: Option<NamespaceMember>,
    /// The name of the pod. None if the node is the namespace itself.
    pub(super) pod: Option<String>,
}

impl NodeNamespace {
    /// Returns the name of an object that every node has: with the node's id if the namespace is shared.
    pub(super) fn name(&self, usual: &str) -> String {
        match self.member {
            Some(_) => format!("{usual}-{}", self.node),
            None => usual.to_owned(),
        }
    }

    pub(super) fn account(&self) -> String {
        self.name(ACCOUNT)
    }

    /// Makes the member the owner of an object, so that the cluster deletes it with the node.
    pub(super) fn own(&self, body: &mut Value) {
        if let Some(member) = &self.member {
            let owner = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": member.name,
                "uid": member.uid,
                "blockOwnerDeletion": true,
            });
            set_owner(body, &owner);
        }
    }
}

/// Makes a pod the owner of an object, so that the cluster deletes it with the pod.
pub(super) fn set_owning_pod(body: &mut Value, pod: &str, uid: Option<&str>) {
    if let Some(uid) = uid {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
        set_owner(body, &owner);
    }
}

fn set_owner(body: &mut Value, owner: &Value) {
    if let Some(metadata) = body.get_mut("metadata") {
        put(metadata, "ownerReferences", json!([owner]));
    }
}
