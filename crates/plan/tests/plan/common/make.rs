//! Ids, pools and requests in few words.

use nodeyard_model::{
    Label, LauncherId, Limits, NodeId, NodeRequest, PoolComponent, ProviderName, RequestId,
    RequestState, ResourceName, Resources, Timestamp,
};
use nodeyard_plan::{LabelSetup, PoolKey, PoolSetup};

pub(crate) fn time(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

pub(crate) fn node_id(number: u64) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn request_id(precedence: u16, number: u64) -> RequestId {
    format!("{precedence:03}-{number:010}").parse().unwrap()
}

pub(crate) fn pool_key(provider: &str, pool: &str) -> PoolKey {
    PoolKey::new(ProviderName::new(provider).unwrap(), pool.into())
}

pub(crate) fn limits(list: &[(&str, i64)]) -> Limits {
    let named = list.iter().map(|(name, n)| (ResourceName::from(*name), *n));
    named.collect()
}

/// Cost and name of the labels that tests use: `small` is one instance, `large` has four cores.
pub(crate) fn cost(label: &str) -> Resources {
    match label {
        "large" => Resources::new(4, 1, 8000),
        "gpu" => {
            let mut cost = Resources::new(2, 1, 4000);
            cost.set(ResourceName::from("gpu"), 1);
            cost
        }
        "disk" => {
            let mut cost = Resources::new(1, 1, 1000);
            cost.set(ResourceName::from("volumes"), 1);
            cost.set(ResourceName::from("volume-gb"), 40);
            cost
        }
        _ => Resources::new(1, 1, 1000),
    }
}

pub(crate) fn setup(provider: &str, pool: &str, labels: &[&str], limits: Limits) -> PoolSetup {
    let key = pool_key(provider, pool);
    PoolSetup {
        id: LauncherId::new(format!("host-PoolWorker.{provider}-{pool}-0")),
        limits,
        labels: labels
            .iter()
            .map(|label| (Label::from(*label), LabelSetup::launched(cost(label))))
            .collect(),
        zones: vec!["zone-1".into(), "zone-2".into()],
        key,
    }
}

pub(crate) fn component(setup: &PoolSetup, priority: i64) -> PoolComponent {
    let mut component = PoolComponent::new(
        "host".into(),
        setup.id.clone(),
        setup.key.pool.clone(),
        setup.key.provider.clone(),
    );
    component.supported_labels = setup.labels.keys().cloned().collect();
    component.priority = priority;
    component
}

pub(crate) fn ask(labels: &[&str], now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(RequestState::Requested, now);
    request.labels = labels.iter().copied().map(Label::from).collect();
    request.requestor = Some("zuul".into());
    request
}
