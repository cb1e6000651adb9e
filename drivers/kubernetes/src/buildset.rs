//! Nodes that belong together: those of one Zuul buildset, or of one scope of the API.

use nodeyard_driver::RequestAttributes;
use serde::Deserialize;

use crate::names;

/// The label of all objects of a buildset.
pub(crate) const BUILDSET: &str = "nodepool_buildset";
/// The label of namespaces that several nodes share.
pub(crate) const SHARED: &str = "nodeyard_shared";
/// The label of namespaces whose services the rest of the buildset may read.
pub(crate) const PEERS: &str = "nodeyard_peer_access";

/// The id of a buildset, as the value of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Buildset(String);

/// The part of a request's data that is used.
#[derive(Deserialize)]
struct BuildsetData {
    build_set_uuid: Option<String>,
    nodeyard_scope: Option<String>,
}

impl Buildset {
    /// Returns None for a node without a request, or whose requestor has no buildsets.
    pub(crate) fn of(request: &RequestAttributes) -> Option<Self> {
        let data: Option<BuildsetData> = request.requestor_data.decode().ok()?;
        let data = data?;
        let scope = data.nodeyard_scope.map(|scope| format!("scope:{scope}"));
        let name = data.build_set_uuid.or(scope)?;
        // Ids are unique within a tenant only.
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
    fn a_node_may_have_none() {
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
