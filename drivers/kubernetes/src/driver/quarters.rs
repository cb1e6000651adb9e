//! Where the things of a node are made: names, and who takes them along when the node goes.

use nodeyard_model::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::put;
use crate::body::ACCOUNT;

/// What stands for a node in a namespace that it shares, and owns all that is the node's there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) uid: String,
}

/// A namespace of one's own, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quarters<'a> {
    pub(super) node: NodeId,
    pub(super) namespace: &'a str,
    pub(super) member: Option<&'a Member>,
}

impl Quarters<'_> {
    /// What a thing is called that others in the namespace have too.
    pub(super) fn name(&self, usual: &str) -> String {
        match self.member {
            Some(_) => format!("{usual}-{}", self.node),
            None => usual.to_owned(),
        }
    }

    pub(super) fn account(&self) -> String {
        self.name(ACCOUNT)
    }

    /// Lets a thing go with the node, where the namespace stays.
    pub(super) fn own(&self, body: &mut Value) {
        if let Some(member) = self.member {
            let owner = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": member.name,
                "uid": member.uid,
                "blockOwnerDeletion": true,
            });
            owned_by(body, &owner);
        }
    }
}

/// Lets a thing go with a pod.
pub(super) fn owned_by_pod(body: &mut Value, pod: &str, uid: Option<&str>) {
    if let Some(uid) = uid {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
        owned_by(body, &owner);
    }
}

fn owned_by(body: &mut Value, owner: &Value) {
    if let Some(metadata) = body.get_mut("metadata") {
        put(metadata, "ownerReferences", json!([owner]));
    }
}
