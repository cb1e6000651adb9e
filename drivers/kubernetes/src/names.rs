//! Names of objects, and encoding of texts as values of labels.

use nodeyard_model::NodeId;
use sha2::{Digest as _, Sha256};

/// The maximum length of a DNS label, and of the value of a label.
const MAX_LENGTH: usize = 63;

/// Returns the namespace of a node, as in Nodepool: `<pool>-<node id>`.
pub(crate) fn namespace(pool: &str, node: NodeId) -> String {
    shorten(pool, &format!("-{node}"))
}

/// Returns the name to use if that one is taken by another installation with a pool of the same name.
pub(crate) fn namespace_of_system(pool: &str, node: NodeId, system: &str) -> String {
    shorten(pool, &format!("-{node}-{}", digest(system)))
}

/// Returns the name of a pod that shares its namespace with others.
pub(crate) fn shared_pod(label: &str, node: NodeId) -> String {
    shorten(label, &format!("-{node}"))
}

/// Returns the namespace that the nodes of a buildset share.
pub(crate) fn shared_namespace(buildset: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if buildset.chars().all(|c| plain(c) || c == '-') && buildset.ends_with(plain) {
        shorten(&format!("buildset-{buildset}"), "")
    } else {
        format!("buildset-{}", digest(buildset))
    }
}

/// Returns the name to use if that one is taken.
pub(crate) fn shared_namespace_of_system(buildset: &str, system: &str) -> String {
    shorten(&shared_namespace(buildset), &format!("-{}", digest(system)))
}

/// Returns the name of a node's member in a shared namespace.
pub(crate) fn member(node: NodeId) -> String {
    format!("node-{node}")
}

/// Returns the name of the copy of a secret with host keys.
pub(crate) fn host_keys(pod: &str) -> String {
    format!("{pod}-host-keys")
}

/// Returns the name of the role binding for the namespace of a peer.
pub(crate) fn peer(namespace: &str) -> String {
    format!("zuul-peer-{namespace}")
}

/// Returns the name of a pod's service, which must begin with a letter.
pub(crate) fn service(pod: &str) -> String {
    if pod.starts_with(|first: char| first.is_ascii_digit()) {
        shorten(&format!("s{pod}"), "")
    } else {
        pod.to_owned()
    }
}

/// Encodes a text as the value of a label: unchanged if it is a valid one. Equal texts have equal values, and different
/// texts different ones.
pub(crate) fn label_value(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric();
    let fits = text.len() <= MAX_LENGTH
        && text
            .chars()
            .all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
        && text.is_empty() | (text.starts_with(plain) && text.ends_with(plain));
    if fits {
        return text.to_owned();
    }
    let readable: String = text
        .chars()
        .map(|c| {
            if plain(c) || matches!(c, '-' | '.') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let digest = digest(text);
    let readable: String = readable
        .trim_start_matches(|c| !plain(c))
        .chars()
        .take(MAX_LENGTH - digest.len() - 1)
        .collect();
    if readable.is_empty() {
        digest
    } else {
        format!("{readable}-{digest}")
    }
}

/// Shortens the beginning if necessary, and adds a digest of it.
fn shorten(beginning: &str, end: &str) -> String {
    if beginning.len() + end.len() <= MAX_LENGTH {
        return format!("{beginning}{end}");
    }
    let digest = digest(beginning);
    let room = MAX_LENGTH - end.len() - digest.len() - 1;
    let cut: String = beginning.chars().take(room).collect();
    format!("{}-{digest}{end}", cut.trim_end_matches('-'))
}

/// Returns a short digest of a text.
pub(crate) fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeId {
        "0000000042".parse().unwrap()
    }

    #[test]
    fn names_are_nodepools_as_long_as_they_fit() {
        assert_eq!(namespace("main", node()), "main-0000000042");
        let pool = "p".repeat(52);
        assert_eq!(namespace(&pool, node()), format!("{pool}-0000000042"));
        assert_eq!(shared_pod("small", node()), "small-0000000042");
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let (one, other) = ("p".repeat(63), format!("{}q", "p".repeat(62)));
        let names = [&one, &other].map(|pool| namespace(pool, node()));
        assert_ne!(names[0], names[1]);
        let of_system = namespace_of_system(&one, node(), "s");
        for name in [&names[0], &names[1], &of_system] {
            assert!(name.len() <= 63, "{name}");
            assert!(name.ends_with("-0000000042") || name.contains("-0000000042-"));
        }
        assert_ne!(of_system, namespace_of_system(&one, node(), "t"));
        let dashes = format!("a{}", "-".repeat(60));
        assert!(!namespace(&dashes, node()).contains("--"));
    }

    #[test]
    fn a_buildset_has_a_namespace_whatever_it_is_called() {
        let uuid = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
        assert_eq!(shared_namespace(uuid), format!("buildset-{uuid}"));
        let long = "b".repeat(63);
        for odd in ["Upper", "under_score", "dash-", "", &long] {
            let of_system = shared_namespace_of_system(odd, "s");
            for name in [shared_namespace(odd), of_system] {
                let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                assert!(name.len() <= 63 && name.chars().all(fits), "{name}");
                assert!(!name.ends_with('-'), "{name}");
            }
        }
        assert_ne!(shared_namespace("A"), shared_namespace("B"));
    }

    #[test]
    fn services_begin_with_a_letter() {
        assert_eq!(service("small"), "small");
        assert_eq!(service("2-cores"), "s2-cores");
        assert_eq!(service(&"1".repeat(63)).len(), 63);
    }

    #[test]
    fn any_text_becomes_a_value_of_a_label() {
        for plain in ["", "a", "0000000042", "cloud-1.example_x"] {
            assert_eq!(label_value(plain), plain);
        }
        let long = "x".repeat(64);
        for odd in ["a b", "tenant/one", "-a", "a-", "…", "ünïcode", &long] {
            let value = label_value(odd);
            assert_eq!(label_value(&value), value, "{odd} became {value}");
            assert_ne!(value, odd);
        }
        assert_ne!(label_value("a b"), label_value("a/b"));
    }
}
