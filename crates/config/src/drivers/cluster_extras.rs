//! Options of the cluster drivers that Nodepool's do not have. All are off by default.

use super::cluster_checks;
use crate::decode::{Decoder, Strictness};
use crate::section::section;
use crate::values::{Object, OneOrMany, Port, Seconds, Table, choice};
use crate::yaml::Map;

choice! {
    /// What happens to a container that ends.
    enum RestartPolicy { Never = "Never", OnFailure = "OnFailure", Always = "Always" }
}

section! {
    /// Options that a pool sets for its labels and a label for itself.
    #[derive(Default)]
    pub struct Hardening (outer: Hardening) {
        /// What happens to a container that ends; not sent when absent.
        "restart-policy" [ours] restart_policy: Option<RestartPolicy> = inherit("the pool's", outer.restart_policy);
        /// Lifetime of the token given to Zuul, which never renews it; for ever when absent.
        "token-ttl" [ours] token_ttl: Option<Seconds> = inherit("the pool's", outer.token_ttl);
        /// Account the pod runs as.
        "service-account-name" [ours] service_account_name: Option<String> = inherit("the pool's", outer.service_account_name.clone());
        /// Whether the pod sees a token of its account; the cluster decides when absent.
        "automount-service-account-token" [ours] automount_service_account_token: Option<bool> = inherit("the pool's", outer.automount_service_account_token);
        /// Secrets for private registries.
        "image-pull-secrets" image_pull_secrets: Vec<PullSecret> = inherit("the pool's", outer.image_pull_secrets.clone());
        /// Labels of namespaces, such as those of pod security.
        "namespace-labels" [ours] namespace_labels: Table<String> = merge("over the pool's", outer.namespace_labels.clone());
        /// Annotations of namespaces.
        "namespace-annotations" [ours] namespace_annotations: Table<String> = merge("over the pool's", outer.namespace_annotations.clone());
        /// Hard limits of a resource quota in each namespace.
        "namespace-quota" [ours] namespace_quota: Option<Object> = inherit("the pool's", outer.namespace_quota.clone());
        /// Whether a namespace starts with a network policy that admits nothing.
        "deny-network" [ours] deny_network: bool = inherit("the pool's, else false", outer.deny_network);
        /// Rules added to the role of namespace nodes.
        "extra-rules" [ours] extra_rules: Vec<Object> = inherit("the pool's", outer.extra_rules.clone());
    }
}

section! {
    /// A secret for a private registry.
    pub struct PullSecret (_outer: ()) {
        /// Name of the secret.
        "name" name: String = required;
        /// Namespace to copy it from; it must exist in the target when absent.
        "namespace" [ours] namespace: Option<String> = optional;
    }
}

choice! {
    /// How an SSH server in a pod is reached.
    enum Expose {
        Cluster = "cluster",
        NodePort = "node-port",
        LoadBalancer = "load-balancer",
        Gateway = "gateway",
        Forward = "forward",
    }
}

section! {
    /// A pod that is handed out as an SSH machine.
    pub struct SshAccess (_outer: ()) checked by check_ssh {
        /// Port of sshd in the container.
        "port" [ours] port: Port = default(Port(22));
        /// User to log in as.
        "username" [ours] username: String = default("zuul".to_owned());
        /// Command of the container; its own when absent.
        "command" [ours] command: Option<Vec<String>> = optional;
        /// Whether the usual sleep loop is the command.
        "keepalive" [ours] keepalive: bool = default(false);
        /// Public keys that may log in.
        "authorized-keys" [ours] authorized_keys: OneOrMany<String> = default(OneOrMany::<String>::default());
        /// Where those keys are mounted.
        "authorized-keys-path" [ours] authorized_keys_path: String = default("/etc/ssh/authorized_keys.d".to_owned());
        /// Secret with host keys, `<namespace>/<name>` to copy it from there; the image's own are scanned when absent.
        "host-key-secret" [ours] host_key_secret: Option<String> = optional;
        /// How the server is reached.
        "expose" [ours] expose: Expose = default(Expose::Cluster);
        /// Whether the pod's own address is used instead of a service's.
        "headless" [ours] headless: bool = default(false);
        /// Address of the cluster nodes, for `node-port`; of this machine, for `forward`.
        "external-address" [ours] external_address: Option<String> = optional;
        /// How long a load balancer may take.
        "lb-timeout" [ours] lb_timeout: Seconds = default(Seconds::new(300));
        /// Annotations of the service.
        "service-annotations" [ours] service_annotations: Table<String> = default(Table::<String>::new());
        /// The gateway, for `gateway`.
        "gateway" [ours] gateway: Option<Gateway> = optional;
        /// First and last port that may be given out, for `gateway` and `forward`; 20000 to 29999 for `forward` when absent.
        "port-range" [ours] port_range: Option<Vec<Port>> = optional;
        /// Networks that may connect.
        "allow-from" [ours] allow_from: Vec<String> = default(Vec::<String>::new());
        /// Whether host keys are gathered before the node is ready.
        "host-key-checking" [ours] host_key_checking: bool = default(true);
        /// How long sshd may take after the pod runs.
        "boot-timeout" [ours] boot_timeout: Seconds = default(Seconds::new(120));
        /// Whether Zuul also gets a service account.
        "kubectl-access" [ours] kubectl_access: bool = default(false);
    }
}

fn check_ssh(ssh: &SshAccess, map: &Map, decoder: &mut Decoder<'_>) {
    if ssh.expose == Expose::Gateway {
        for key in ["gateway", "port-range"] {
            if map.set(key).is_none() {
                decoder.error(
                    "missing-key",
                    map.head(),
                    format!("`{key}` is required with `expose: gateway`"),
                );
            }
        }
    }
    if let (Some(gateway), Some(entry)) = (&ssh.gateway, map.set("gateway"))
        && ssh.expose == Expose::Gateway
        && gateway.namespace.is_none()
    {
        let message = "a gateway is found by its name and its `namespace`";
        decoder.error("missing-key", entry.key_span, message);
    }
    if let (Some(range), Some(entry)) = (&ssh.port_range, map.set("port-range"))
        && !matches!(range.as_slice(), [first, last] if first.0 <= last.0)
    {
        decoder.error(
            "out-of-range",
            entry.value.span,
            "a port range is a list of its first and its last port",
        );
    }
    cluster_checks::ssh(ssh, map, decoder);
    if ssh.keepalive {
        decoder.at_most_one(map, &["command", "keepalive"], Strictness::Strict);
    }
}

section! {
    /// A gateway that carries TCP.
    pub struct Gateway (_outer: ()) {
        /// Name.
        "name" [ours] name: String = required;
        /// Namespace.
        "namespace" [ours] namespace: Option<String> = optional;
        /// Section, which is the listener.
        "section" [ours] section: Option<String> = optional;
    }
}

section! {
    /// A second container with git.
    pub struct GitSidecar (_outer: ()) {
        /// Image that contains git.
        "image" [ours] image: String = required;
        /// Where the shared volume is mounted.
        "path" [ours] path: String = default("/zuul/git".to_owned());
        /// Name of the shared volume.
        "volume-name" [ours] volume_name: String = default("zuul-git".to_owned());
        /// Limit of the volume's size, as the API takes it.
        "size-limit" [ours] size_limit: Option<String> = optional;
        /// Requests and limits of the container, as the API takes them.
        "resources" [ours] resources: Option<Object> = optional;
        /// Containers that get the volume; all when absent.
        "mount-in" [ours] mount_in: OneOrMany<String> = default(OneOrMany::<String>::default());
    }
}

choice! {
    /// Whether a console daemon is put in the container.
    enum Console { None = "none", Inject = "inject" }
}

choice! {
    /// Whether nodes of one buildset share a namespace.
    enum Share { None = "none", Buildset = "buildset" }
}

choice! {
    /// What nodes of one buildset see of each other's namespaces.
    enum PeerAccess { None = "none", Services = "services" }
}

choice! {
    /// What an account may do with the integrated registry.
    enum RegistryAccess { Push = "push", Pull = "pull", None = "none" }
}
