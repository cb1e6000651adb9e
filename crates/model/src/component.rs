//! Records of running components: launchers, pools and builders.

use crate::names::{Label, LauncherId, PoolName, ProviderName};
use crate::record::record;
use crate::state::{ComponentKind, ComponentState};

/// The version of the data model of Nodepool 11.0.0. Python components do not start if another one has a higher
/// version.
const MODEL_API: i64 = 0;

/// The default priority of pools; lower is first.
pub const DEFAULT_PRIORITY: i64 = 100;

record! {
    /// A launcher or a builder.
    Component, "component";
    required {
        "hostname" => hostname: Box<str>;
        "kind" => kind: ComponentKind;
    }
    optional {
        "state" => state: ComponentState = ComponentState::Stopped;
        "version" => version: Option<Box<str>> = None;
        "model_api" => model_api: i64 = MODEL_API;
    }
}

record! {
    /// A pool of a provider, as run by one launcher.
    PoolComponent, "pool component";
    required {
        "hostname" => hostname: Box<str>;
        /// The launcher id that this pool writes to `declined_by` and to its nodes.
        "id" => id: LauncherId;
        "name" => name: PoolName;
        "provider_name" => provider_name: ProviderName;
    }
    optional {
        "kind" => kind: ComponentKind = ComponentKind::Pool;
        "state" => state: ComponentState = ComponentState::Stopped;
        "version" => version: Option<Box<str>> = None;
        "model_api" => model_api: i64 = MODEL_API;
        "supported_labels" => supported_labels: Vec<Label> = Vec::new();
        "priority" => priority: i64 = DEFAULT_PRIORITY;
        /// True while the pool waits for quota and accepts no requests.
        "paused" => paused: bool = false;
        /// The cluster in which nodes of this pool can reach each other's services. Only in our records.
        "cluster" => cluster: Option<Box<str>> = None, omits Option::is_none;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn keys_are_sorted() {
        let mut pool = PoolComponent::new(
            "np01".into(),
            "np01-PoolWorker.cloud-main-0".into(),
            "main".into(),
            ProviderName::new("cloud").unwrap(),
        );
        pool.supported_labels = vec!["small".into()];
        assert_eq!(
            String::from_utf8(pool.to_json()).unwrap(),
            r#"{"hostname": "np01", "id": "np01-PoolWorker.cloud-main-0", "kind": "pool", "model_api": 0, "name": "main", "paused": false, "priority": 100, "provider_name": "cloud", "state": "stopped", "supported_labels": ["small"], "version": null}"#
        );
    }
}
