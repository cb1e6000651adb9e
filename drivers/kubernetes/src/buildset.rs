//! Nodes that belong together: those of one buildset of Zuul's, or of one scope of the API.

use nodeyard_driver::RequestAttributes;
use serde::Deserialize;

use crate::names;

/// Carried by everything that is for a buildset.
pub(crate) const BUILDSET: &str = "nodepool_buildset";
/// Carried by namespaces that several nodes are in.
pub(crate) const SHARED: &str = "nodeyard_shared";
/// Carried by namespaces whose services the rest of the buildset may look at.
pub(crate) const PEERS: &str = "nodeyard_peer_access";

/// As the value of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Buildset(String);

/// What requests say, as far as it matters here.
#[derive(Deserialize)]
struct RequestorData {
    build_set_uuid: Option<String>,
    nodeyard_scope: Option<String>,
}

impl Buildset {
    /// None for a node that is for nobody yet, or for somebody who has no such thing.
    pub(crate) fn of(request: &RequestAttributes) -> Option<Self> {
        let data: Option<RequestorData> = request.requestor_data.decode().ok()?;
        let data = data?;
        let scope = data.nodeyard_scope.map(|scope| format!("scope:{scope}"));
        let name = data.build_set_uuid.or(scope)?;
        // Names are unique within a tenant, and tenants have nothing to do with each other.
        let tenant = request.tenant_name.as_ref();
        let text = match tenant {
            Some(tenant) => format!("{name}-{}", names::digest(tenant.as_str())),
            None => name,
        };
        Some(Self(names::label_value(&text)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_model::Opaque;
    use serde_json::{Value, json};

    use super::*;

    fn of(data: &Value, tenant: Option<&str>) -> Option<Buildset> {
        Buildset::of(&RequestAttributes {
            requestor_data: Opaque::encode(data).unwrap(),
            tenant_name: tenant.map(Into::into),
            ..RequestAttributes::default()
        })
    }

    #[test]
    fn strangers_never_share() {
        let zuul = json!({"build_set_uuid": "b1", "job_name": "j"});
        let scope = json!({"nodeyard_lease": "x", "nodeyard_scope": "b1"});
        let all = [
            of(&zuul, None),
            of(&zuul, Some("one")),
            of(&zuul, Some("two")),
            of(&scope, None),
            of(&scope, Some("one")),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(one.is_some());
            assert!(all[index + 1..].iter().all(|other| other != one), "{one:?}");
        }
        assert_eq!(of(&zuul, Some("one")), of(&zuul, Some("one")));
    }

    #[test]
    fn not_everybody_has_one() {
        for data in [
            json!(null),
            json!({}),
            json!({"build_set_uuid": null}),
            json!({"build_set_uuid": 7}),
            json!("b1"),
        ] {
            assert_eq!(of(&data, None), None, "{data}");
        }
    }
}
