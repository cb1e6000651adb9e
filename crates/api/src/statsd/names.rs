//! Nodepool's statsd metric names.

use std::borrow::Cow;

use nodeyard_model::{Label, NodeState, PoolName, ProviderName, ResourceName, TenantName};

use crate::metrics::LaunchSample;

/// Returns the names for a launch: overall, by provider, zone and requestor.
pub(crate) fn launch(launch: &LaunchSample<'_>) -> Vec<String> {
    let (provider, result) = (escape(launch.provider.as_str()), launch.result);
    let mut names = vec![
        format!("nodepool.launch.provider.{provider}.{result}"),
        format!("nodepool.launch.{result}"),
    ];
    if let Some(az) = launch.az.filter(|az| !az.is_empty()) {
        let az = escape(az);
        names.push(format!("nodepool.launch.provider.{provider}.{az}.{result}"));
    }
    if let Some(requestor) = launch.requestor.filter(|requestor| !requestor.is_empty()) {
        let requestor = escape_component(requestor);
        names.push(format!("nodepool.launch.requestor.{requestor}.{result}"));
    }
    names
}

/// Returns the name of a gauge about the connection to the store; `what` may have several components.
pub(crate) fn store(hostname: &str, what: &str) -> String {
    format!("nodepool.launcher.{}.zk.{what}", escape(hostname))
}

pub(crate) fn nodes(state: NodeState) -> String {
    format!("nodepool.nodes.{state}")
}

pub(crate) fn provider_nodes(provider: &ProviderName, state: NodeState) -> String {
    format!(
        "nodepool.provider.{}.nodes.{state}",
        escape(provider.as_str())
    )
}

pub(crate) fn label_nodes(label: &Label, state: NodeState) -> String {
    format!("nodepool.label.{}.nodes.{state}", escape(label.as_str()))
}

pub(crate) fn addressable_requests(provider: &ProviderName, pool: &PoolName) -> String {
    format!(
        "nodepool.provider.{}.pool.{}.addressable_requests",
        escape(provider.as_str()),
        escape(pool.as_str())
    )
}

pub(crate) fn max_servers(provider: &ProviderName) -> String {
    format!(
        "nodepool.provider.{}.max_servers",
        escape(provider.as_str())
    )
}

pub(crate) fn leaked(provider: &ProviderName, kind: &str) -> String {
    format!(
        "nodepool.provider.{}.leaked.{kind}",
        escape(provider.as_str())
    )
}

pub(crate) fn tenant_limit(tenant: &TenantName, resource: &ResourceName) -> String {
    format!(
        "nodepool.tenant_limits.{}.{}",
        escape_component(tenant.as_str()),
        escape_component(resource.as_str())
    )
}

/// Replaces the characters that end a name in the statsd protocol. Dots stay.
pub(crate) fn escape(name: &str) -> Cow<'_, str> {
    replaced(name, |c| matches!(c, ':' | '|') || c.is_control())
}

/// Replaces those characters and dots, for text that is to be a single component of a name.
fn escape_component(name: &str) -> Cow<'_, str> {
    replaced(name, |c| matches!(c, '.' | ':' | '|') || c.is_control())
}

fn replaced(name: &str, is_bad: fn(char) -> bool) -> Cow<'_, str> {
    if name.contains(is_bad) {
        name.replace(is_bad, "_").into()
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_stay_in_names_that_operators_choose() {
        let provider = ProviderName::new("cloud.one").unwrap();
        assert_eq!(
            max_servers(&provider),
            "nodepool.provider.cloud.one.max_servers"
        );
        assert_eq!(
            tenant_limit(&"a.b:c".into(), &"gpu.v100".into()),
            "nodepool.tenant_limits.a_b_c.gpu_v100"
        );
    }

    #[test]
    fn names_cannot_inject_lines() {
        assert_eq!(
            label_nodes(&"x:1|c\nother:2|c".into(), NodeState::Ready),
            "nodepool.label.x_1_c_other_2_c.nodes.ready"
        );
    }
}
