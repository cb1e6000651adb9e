//! Checks options of cluster labels that contradict each other or the driver.

use std::collections::HashMap;

use super::cluster::{ClusterLabel, ClusterPool, Flavour, NodeKind};
use super::cluster_extras::{Console, Expose, PeerAccess, Share, SshAccess};
use crate::decode::{Decoder, Strictness};
use crate::file::LabelConfig;
use crate::yaml::Map;

const CODE: &str = "contradiction";

/// Checks a label by itself.
pub(super) fn label(label: &ClusterLabel, map: &Map, decoder: &mut Decoder<'_>) {
    let shares = label.share == Share::Buildset;
    let peers = label.buildset_peer_access == PeerAccess::Services;
    if shares && peers {
        decoder.at_most_one(map, &["share", "buildset-peer-access"], Strictness::Strict);
    }
    let mut complain = |key: &str, message: &str| {
        if let Some(entry) = map.set(key) {
            decoder.error(CODE, entry.key_span, message);
        }
    };
    let account = label.ssh.as_ref().is_none_or(|ssh| ssh.kubectl_access);
    if peers && !account {
        complain(
            "buildset-peer-access",
            "an SSH pod has no account that could look at anything, unless `kubectl-access` is set",
        );
    }
    if label.console == Console::Inject {
        let loops = label.ssh.as_ref().is_none_or(|ssh| ssh.keepalive);
        if label.node_kind() != NodeKind::Pod {
            complain("console", "only pods have a container to put a console in");
        } else if label.spec.is_some() || !loops {
            complain(
                "console",
                "the console is started by the sleep loop, and this container runs something else",
            );
        }
    }
    if label.registry_external && label.node_kind() != NodeKind::Project {
        complain(
            "registry-external",
            "only projects of OpenShift have a registry",
        );
    }
}

pub(super) fn ssh(ssh: &SshAccess, map: &Map, decoder: &mut Decoder<'_>) {
    if ssh.expose != Expose::Forward {
        return;
    }
    for key in ["headless", "service-annotations", "gateway", "lb-timeout"] {
        if let Some(entry) = map.set(key) {
            let message = format!("`{key}` has no effect with `expose: forward`");
            decoder.lenient("ignored-key", entry.key_span, message);
        }
    }
}

/// Checks what depends on the driver.
pub(super) fn flavour(label: &ClusterLabel, flavour: Flavour, decoder: &mut Decoder<'_>) {
    let mut complain = |message: &str| {
        decoder.error(CODE, label.name.span, message);
    };
    if flavour != Flavour::Kubernetes {
        if label.share != Share::None {
            complain("`share` is for `driver: kubernetes`: only there can a namespace be shared");
        }
        if label.buildset_peer_access != PeerAccess::None {
            complain(
                "`buildset-peer-access` is for `driver: kubernetes`: only there can namespaces find each other",
            );
        }
    }
    let Some(ssh) = &label.ssh else { return };
    let copied = (ssh.host_key_secret.as_deref()).is_none_or(|secret| {
        let parts: Vec<&str> = secret.split('/').collect();
        matches!(parts.as_slice(), [namespace, name] if !namespace.is_empty() && !name.is_empty())
    });
    if !copied && flavour != Flavour::OpenShiftPods {
        complain(
            "`host-key-secret` is `<namespace>/<name>` here: nodes are in new namespaces, and get a copy",
        );
    }
}

/// Reports labels that need a buildset and have `min-ready` nodes, which belong to none.
pub(super) fn ready_nodes(
    pools: &[ClusterPool],
    labels: &[LabelConfig],
    decoder: &mut Decoder<'_>,
) {
    let by_name: HashMap<&str, &LabelConfig> = (labels.iter())
        .map(|label| (label.name.as_str(), label))
        .collect();
    for label in pools.iter().flat_map(|pool| &pool.labels) {
        let key = match (label.share, label.buildset_peer_access) {
            (Share::Buildset, _) => "share",
            (_, PeerAccess::Services) => "buildset-peer-access",
            (Share::None, PeerAccess::None) => continue,
        };
        let kept = by_name.get(label.name.as_str());
        let Some(kept) = kept.filter(|kept| kept.min_ready > 0) else {
            continue;
        };
        let message = format!(
            "`{key}` needs the buildset of a request, and `min-ready` makes nodes before there is one"
        );
        if let Some(finding) = decoder.error(CODE, label.name.span, message) {
            finding.label(kept.name.span, "nodes are kept ready here");
        }
    }
}
