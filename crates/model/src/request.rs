//! Records of node requests and their order.

use std::sync::Arc;

use crate::ids::{NodeId, RequestId};
use crate::json::Opaque;
use crate::names::{Label, LauncherId, ProviderName, TenantName};
use crate::record::{impl_set_state, record};
use crate::state::RequestState;
use crate::time::Timestamp;

record! {
    /// A request for nodes. Its id is in its path.
    NodeRequest, "node request";
    required {
        "state" => state: RequestState;
        /// When `state` was last set.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The requested labels, in order; may contain duplicates.
        "node_types" => labels: Vec<Label> = Vec::new();
        /// The allocated nodes, one per label in the same order, because Zuul matches them by index.
        "nodes" => nodes: Vec<NodeId> = Vec::new();
        /// The pools that declined; append-only.
        "declined_by" => declined_by: Vec<LauncherId> = Vec::new();
        /// If false, the nodes must be launched for this request.
        "reuse" => reuse: bool = true;
        /// The requestor. Zuul ignores requests of others.
        "requestor" => requestor: Option<Arc<str>> = None;
        /// The requestor's own data.
        "requestor_data" => requestor_data: Opaque = Opaque::NULL;
        /// The required provider, if nodes must reach those of another job.
        "provider" => provider: Option<ProviderName> = None;
        /// Orders requests of the same precedence; lower is first. Zuul updates it while the request waits.
        "relative_priority" => relative_priority: i64 = 0;
        /// Correlates log lines of all programs that handle one event.
        "event_id" => event_id: Option<Box<str>> = None;
        "created_time" => created_time: Option<Timestamp> = None;
        "tenant_name" => tenant_name: Option<TenantName> = None;
    }
}

impl_set_state!(NodeRequest: RequestState);

/// The nodes do not match the requested labels one to one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the nodes do not match the requested labels: {asked} requested, {given} given, {}", Unserved(unserved.as_ref()))]
pub struct LabelMismatch {
    pub asked: usize,
    pub given: usize,
    /// The first label without a node.
    pub unserved: Option<Label>,
}

struct Unserved<'a>(Option<&'a Label>);

impl std::fmt::Display for Unserved<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(label) => write!(f, "none for {label:?}"),
            None => f.write_str("some not requested"),
        }
    }
}

/// The key of `requestor_data` that makes a request wait for an image that is being built.
const WAIT_FOR_IMAGE: &str = "nodeyard_wait_for_image";

impl NodeRequest {
    /// Returns whether the request waits for an image that is being built. Otherwise it fails, as in Nodepool.
    pub fn waits_for_image(&self) -> bool {
        // Avoids parsing the data of Zuul's requests.
        if !self.requestor_data.text().contains(WAIT_FOR_IMAGE) {
            return false;
        }
        let data: Result<serde_json::Map<String, serde_json::Value>, _> =
            self.requestor_data.decode();
        let data = data.unwrap_or_default();
        data.get(WAIT_FOR_IMAGE) == Some(&serde_json::Value::Bool(true))
    }

    pub fn order(&self, id: RequestId) -> RequestOrder {
        RequestOrder {
            precedence: id.precedence(),
            relative_priority: self.relative_priority,
            sequence: id.sequence(),
        }
    }

    /// Assigns `given`, pairs of label and node, in the order of the labels and marks the request fulfilled. Changes
    /// nothing unless there is exactly one node per label.
    pub fn fulfil(
        &mut self,
        mut given: Vec<(Label, NodeId)>,
        now: Timestamp,
    ) -> Result<(), LabelMismatch> {
        let mismatch = LabelMismatch {
            asked: self.labels.len(),
            given: given.len(),
            unserved: None,
        };
        let mut nodes = Vec::with_capacity(self.labels.len());
        for label in &self.labels {
            let Some(position) = given.iter().position(|(served, _)| served == label) else {
                return Err(LabelMismatch {
                    unserved: Some(label.clone()),
                    ..mismatch
                });
            };
            nodes.push(given.remove(position).1);
        }
        if !given.is_empty() {
            return Err(mismatch);
        }
        self.nodes = nodes;
        self.set_state(RequestState::Fulfilled, now);
        Ok(())
    }
}

/// The order in which requests are served; the smallest is first.
///
/// Compares like the texts in Python, because precedence and sequence have a fixed width there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestOrder {
    precedence: u16,
    relative_priority: i64,
    sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(labels: &[&str]) -> NodeRequest {
        let mut request =
            NodeRequest::new(RequestState::Pending, Timestamp::from_secs(1.0).unwrap());
        request.labels = labels.iter().copied().map(Label::from).collect();
        request
    }

    fn given(nodes: &[(&str, &str)]) -> Vec<(Label, NodeId)> {
        nodes
            .iter()
            .map(|(label, id)| (Label::from(*label), id.parse().unwrap()))
            .collect()
    }

    #[test]
    fn waiting_for_images_is_opt_in() {
        let mut request = request(&[]);
        for (data, waits) in [
            ("null", false),
            (r#"{"nodeyard_wait_for_image": true}"#, true),
            (r#"{"a": 1, "nodeyard_wait_for_image": false}"#, false),
            (r#"{"nested": {"nodeyard_wait_for_image": true}}"#, false),
            (r#"["nodeyard_wait_for_image"]"#, false),
        ] {
            let value: serde_json::Value = serde_json::from_str(data).unwrap();
            request.requestor_data = Opaque::encode(&value).unwrap();
            assert_eq!(request.waits_for_image(), waits, "{data}");
        }
    }

    #[test]
    fn precedence_then_relative_priority_then_age() {
        let key = |id: &str, relative_priority| {
            let mut request = request(&[]);
            request.relative_priority = relative_priority;
            request.order(id.parse().unwrap())
        };
        let sorted = [
            key("099-0000000009", 50),
            key("100-0000000008", -1),
            key("100-0000000003", 0),
            key("100-0000000010", 0),
            key("100-0000000001", 2),
            key("100-0000000001", 10),
            key("900-0000000000", 0),
        ];
        assert!(sorted.is_sorted());
    }

    #[test]
    fn nodes_are_in_the_order_of_labels() {
        let mut request = request(&["small", "big", "small"]);
        let now = Timestamp::from_secs(7.5).unwrap();
        request
            .fulfil(
                given(&[
                    ("big", "0000000001"),
                    ("small", "0000000003"),
                    ("small", "0000000002"),
                ]),
                now,
            )
            .unwrap();
        let nodes: Vec<_> = request.nodes.iter().map(ToString::to_string).collect();
        assert_eq!(nodes, ["0000000003", "0000000001", "0000000002"]);
        assert_eq!(
            (request.state, request.state_time),
            (RequestState::Fulfilled, now)
        );
    }

    #[test]
    fn a_mismatch_changes_nothing() {
        let mut request = request(&["small", "big"]);
        let before = request.clone();
        let now = Timestamp::from_secs(7.5).unwrap();
        for (nodes, unserved) in [
            (given(&[("small", "0000000001")]), Some("big")),
            (
                given(&[("big", "0000000001"), ("big", "0000000002")]),
                Some("small"),
            ),
            (
                given(&[
                    ("big", "0000000001"),
                    ("small", "0000000002"),
                    ("x", "0000000003"),
                ]),
                None,
            ),
        ] {
            let error = request.fulfil(nodes, now).unwrap_err();
            assert_eq!(error.unserved.as_ref().map(Label::as_str), unserved);
            assert_eq!(request, before);
        }
    }
}
