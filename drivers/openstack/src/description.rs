//! Tags of a floating IP, as JSON in its description: nothing else can be set in the call that creates it.

use std::collections::BTreeMap;

use nodeyard_driver::{Owner, Tags};
use nodeyard_model::NodeId;

/// Neutron's limit.
const LONGEST: usize = 255;

/// Returns the description of a node's floating IP; empty if the tags are too long.
pub(crate) fn description(owner: &Owner, node: NodeId) -> String {
    let tags = Tags {
        system: Some(owner.system.clone()),
        provider: Some(owner.provider.clone()),
        node: Some(node),
        ..Tags::default()
    };
    let text = serde_json::to_string(&tags.to_metadata()).unwrap_or_default();
    if text.len() > LONGEST {
        String::new()
    } else {
        text
    }
}

/// Reads the tags in a description; none if it says something else.
pub(crate) fn tags(description: &str) -> Tags {
    let metadata: BTreeMap<String, String> = serde_json::from_str(description).unwrap_or_default();
    Tags::from_metadata(
        metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str())),
    )
}

#[cfg(test)]
mod tests {
    use nodeyard_driver::SystemId;
    use nodeyard_model::ProviderName;

    use super::*;

    #[test]
    fn a_description_leads_back_to_the_node() {
        let owner = |provider: &str| Owner {
            system: SystemId::new("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
            provider: ProviderName::new(provider).unwrap(),
        };
        let node = "0000000042".parse().unwrap();
        let short = owner("cloud");
        assert!(short.owns_node(&tags(&description(&short, node)), node));
        assert_eq!(description(&owner(&"x".repeat(300)), node), "");
        for other in ["", "for the web server", "[]", r#"{"nodepool_node_id": 1}"#] {
            assert_eq!(tags(other), Tags::default(), "{other}");
        }
    }
}
