//! The names that dashboards are made from.

use std::borrow::Cow;

use nodeyard_model::{Label, NodeState, PoolName, ProviderName, ResourceName, TenantName};

use crate::metrics::Launch;

/// Of one launch: overall, by provider, zone and requestor.
pub(crate) fn launch(launch: &Launch<'_>) -> Vec<String> {
    let (provider, result) = (raw(launch.provider.as_str()), launch.result);
    let mut names = vec![
        format!("nodepool.launch.provider.{provider}.{result}"),
        format!("nodepool.launch.{result}"),
    ];
    if let Some(az) = launch.az.filter(|az| !az.is_empty()) {
        let az = raw(az);
        names.push(format!("nodepool.launch.provider.{provider}.{az}.{result}"));
    }
    if let Some(requestor) = launch.requestor.filter(|requestor| !requestor.is_empty()) {
        let requestor = one_part(requestor);
        names.push(format!("nodepool.launch.requestor.{requestor}.{result}"));
    }
    names
}

/// Of the connection to the store; `what` is several parts of a name.
pub(crate) fn store(hostname: &str, what: &str) -> String {
    format!("nodepool.launcher.{}.zk.{what}", raw(hostname))
}

pub(crate) fn nodes(state: NodeState) -> String {
    format!("nodepool.nodes.{state}")
}

pub(crate) fn provider_nodes(provider: &ProviderName, state: NodeState) -> String {
    format!("nodepool.provider.{}.nodes.{state}", raw(provider.as_str()))
}

pub(crate) fn label_nodes(label: &Label, state: NodeState) -> String {
    format!("nodepool.label.{}.nodes.{state}", raw(label.as_str()))
}

pub(crate) fn addressable_requests(provider: &ProviderName, pool: &PoolName) -> String {
    format!(
        "nodepool.provider.{}.pool.{}.addressable_requests",
        raw(provider.as_str()),
        raw(pool.as_str())
    )
}

pub(crate) fn max_servers(provider: &ProviderName) -> String {
    format!("nodepool.provider.{}.max_servers", raw(provider.as_str()))
}

pub(crate) fn leaked(provider: &ProviderName, kind: &str) -> String {
    format!("nodepool.provider.{}.leaked.{kind}", raw(provider.as_str()))
}

pub(crate) fn tenant_limit(tenant: &TenantName, resource: &ResourceName) -> String {
    format!(
        "nodepool.tenant_limits.{}.{}",
        one_part(tenant.as_str()),
        one_part(resource.as_str())
    )
}

/// Dots and all, except for what would end the name on the wire.
pub(crate) fn raw(name: &str) -> Cow<'_, str> {
    replaced(name, |c| matches!(c, ':' | '|') || c.is_control())
}

/// Text that anybody chose, as a single part of a name.
fn one_part(name: &str) -> Cow<'_, str> {
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
    fn no_name_can_write_a_line_of_its_own() {
        assert_eq!(
            label_nodes(&"x:1|c\nother:2|c".into(), NodeState::Ready),
            "nodepool.label.x_1_c_other_2_c.nodes.ready"
        );
    }
}
