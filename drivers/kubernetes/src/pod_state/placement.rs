//! What the scheduler says about a pod that it cannot place, as a pure function.
//!
//! Its message counts the nodes of the cluster by reason, and then by what preemption of other pods would change: `0/3 nodes
//! are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes are available: 1 Preemption is
//! not helpful for scheduling, 2 No preemption victims found for incoming pod.`

/// Reasons that remain when all other pods have ended.
const LASTING: &[&str] = &[
    // More than the node has, if preemption would not help.
    "Insufficient ",
    "node affinity/selector",
    "node-role.kubernetes.io/control-plane",
];

/// Whether the pod would fit no node of the cluster if that ran nothing else. False if the message does not tell.
pub(super) fn fits_no_node(message: &str) -> bool {
    let Some((nodes, preemption)) = message.split_once("preemption:") else {
        return false;
    };
    let useless = preemption.contains("Preemption is not helpful")
        && !preemption.contains("No preemption victims");
    let Some((_, reasons)) = nodes.split_once("nodes are available:") else {
        return false;
    };
    // The plugins of the scheduler may add sentences.
    let reasons = reasons.trim_start().split(". ").next().unwrap_or_default();
    useless
        && reasons
            .split(", ")
            .all(|reason| LASTING.iter().any(|lasting| reason.contains(lasting)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_larger_than_each_node_is_recognised() {
        for message in [
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are \
             available: 1 Preemption is not helpful for scheduling.",
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are \
             available: 3 Preemption is not helpful for scheduling.",
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 \
             Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ] {
            assert!(fits_no_node(message), "{message}");
        }
    }

    #[test]
    fn a_cluster_that_may_get_room_is_not_too_small() {
        for message in [
            "",
            "no nodes available to schedule pods",
            "0/1 nodes are available: 1 Insufficient cpu.",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims \
             found for incoming pod.",
            "0/2 nodes are available: 1 Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector. \
             preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not \
             helpful for scheduling.",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.",
            "0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 No preemption victims \
             found for incoming pod.",
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. preemption: 0/2 nodes are \
             available: 2 Preemption is not helpful for scheduling.",
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }. preemption: \
             0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        ] {
            assert!(!fits_no_node(message), "{message}");
        }
    }
}
