//! `driver: kubernetes`, `openshift` and `openshiftpods`: three providers, one kind of pool.

use std::rc::Rc;

use serde::Serialize;

use super::cluster_checks;
use super::cluster_extras::{
    Console, GitSidecar, Hardening, PeerAccess, RegistryAccess, Share, SshAccess,
};
use crate::check::FileReferences;
use crate::decode::{Decode, Decoder};
use crate::provider::{DriverSection, LabelRef, PoolCommon, PoolOuter, PoolRef, ProviderCommon};
use crate::section::{Describe, TypeInfo, section};
use crate::values::{Limit, Name, Object, Seconds, Table, choice, type_info};
use crate::yaml::{Map, YamlNode};

choice! {
    /// Whether a request that names another provider is left to it.
    enum Affinity { Prefer = "prefer", Require = "require" }
}

section! {
    /// A Kubernetes cluster.
    pub struct Kubernetes (outer: ProviderCommon) {
        /// Context of the kubeconfig; the in-cluster account is used where there is no kubeconfig.
        "context" context: Option<String> = optional;
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// Limit of nodes, for pools that have none.
        "max-servers" max_servers: Limit = default(Limit::NONE);
        /// Limit of cores, for pools that have none.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB, for pools that have none.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limits of other resources.
        "max-resources" max_resources: Table<u64> = default(Table::<u64>::new());
        /// What happens to requests that name another provider of this kind.
        "affinity" [ours] affinity: Affinity = default(Affinity::Prefer);
        /// Providers with the same value reach each other's services; the API host when absent.
        "cluster-id" [ours] cluster_id: Option<String> = optional;
        /// How long a pod may wait for room in the cluster before its request waits for quota; longer while an autoscaler adds nodes.
        "scheduling-timeout" [ours] scheduling_timeout: Seconds = default(Seconds::new(30));
        /// How long the cluster may retry to pull an image before the launch fails.
        "image-pull-timeout" [ours] image_pull_timeout: Seconds = default(Seconds::new(120));
        /// Groups of labels.
        "pools" pools: Vec<ClusterPool> = default(Vec::<ClusterPool>::new()) in (ClusterPoolOuter {
            flavour: Flavour::Kubernetes,
            pool: PoolOuter { priority: outer.priority, max_servers },
            max_cores,
            max_ram,
            max_resources: max_resources.clone(),
        });
    }
}

section! {
    /// An OpenShift cluster, with a project for each node.
    pub struct OpenShift (outer: ProviderCommon) {
        /// Context of the kubeconfig.
        "context" context: String = required;
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// Limit of projects, for pools that have none.
        "max-projects" | "max-servers" max_servers: Limit = default(Limit::NONE);
        /// Limit of cores, for pools that have none.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB, for pools that have none.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limits of other resources.
        "max-resources" max_resources: Table<u64> = default(Table::<u64>::new());
        /// What happens to requests that name another provider of this kind.
        "affinity" [ours] affinity: Affinity = default(Affinity::Prefer);
        /// Providers with the same value reach each other's services; the API host when absent.
        "cluster-id" [ours] cluster_id: Option<String> = optional;
        /// How long a pod may wait for room in the cluster before its request waits for quota; longer while an autoscaler adds nodes.
        "scheduling-timeout" [ours] scheduling_timeout: Seconds = default(Seconds::new(30));
        /// How long the cluster may retry to pull an image before the launch fails.
        "image-pull-timeout" [ours] image_pull_timeout: Seconds = default(Seconds::new(120));
        /// Groups of labels.
        "pools" pools: Vec<ClusterPool> = default(Vec::<ClusterPool>::new()) in (ClusterPoolOuter {
            flavour: Flavour::OpenShift,
            pool: PoolOuter { priority: outer.priority, max_servers },
            max_cores,
            max_ram,
            max_resources: max_resources.clone(),
        });
    }
}

section! {
    /// Existing projects of an OpenShift cluster, with a pod for each node.
    pub struct OpenShiftPods (outer: ProviderCommon) {
        /// Context of the kubeconfig.
        "context" context: String = required;
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// Limit of pods, for pools that have none.
        "max-pods" | "max-projects" | "max-servers" max_servers: Limit = default(Limit::NONE);
        /// Limit of cores, for pools that have none.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB, for pools that have none.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limits of other resources.
        "max-resources" max_resources: Table<u64> = default(Table::<u64>::new());
        /// What happens to requests that name another provider of this kind.
        "affinity" [ours] affinity: Affinity = default(Affinity::Prefer);
        /// Providers with the same value reach each other's services; the API host when absent.
        "cluster-id" [ours] cluster_id: Option<String> = optional;
        /// How long a pod may wait for room in the cluster before its request waits for quota; longer while an autoscaler adds nodes.
        "scheduling-timeout" [ours] scheduling_timeout: Seconds = default(Seconds::new(30));
        /// How long the cluster may retry to pull an image before the launch fails.
        "image-pull-timeout" [ours] image_pull_timeout: Seconds = default(Seconds::new(120));
        /// Groups of labels, each named as an existing project.
        "pools" pools: Vec<ClusterPool> = default(Vec::<ClusterPool>::new()) in (ClusterPoolOuter {
            flavour: Flavour::OpenShiftPods,
            pool: PoolOuter { priority: outer.priority, max_servers },
            max_cores,
            max_ram,
            max_resources: max_resources.clone(),
        });
    }
}

/// Which of the three drivers a pool belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Kubernetes,
    OpenShift,
    OpenShiftPods,
}

/// What a pool takes from its provider.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPoolOuter {
    flavour: Flavour,
    pool: PoolOuter,
    max_cores: Limit,
    max_ram: Limit,
    max_resources: Table<u64>,
}

/// What a label takes from its pool.
#[derive(Debug, Clone)]
pub(crate) struct ClusterLabelOuter {
    flavour: Flavour,
    cpu: Option<u64>,
    memory: Option<u64>,
    storage: Option<u64>,
    cpu_limit: Option<u64>,
    memory_limit: Option<u64>,
    storage_limit: Option<u64>,
    extra_resources: Table<u64>,
    hardening: Hardening,
}

section! {
    /// A group of labels in a cluster.
    pub struct ClusterPool (outer: ClusterPoolOuter) including common: PoolCommon (outer.pool) including hardening: Hardening (Hardening::default()) checked by check_pool {
        /// Limit of cores.
        "max-cores" max_cores: Limit = inherit("the provider's", outer.max_cores);
        /// Limit of memory in MiB.
        "max-ram" max_ram: Limit = inherit("the provider's", outer.max_ram);
        /// Limits of other resources.
        "max-resources" max_resources: Table<u64> = merge("over the provider's", outer.max_resources.clone());
        /// Cores, for labels that do not say.
        "default-label-cpu" default_label_cpu: Option<u64> = optional;
        /// Memory in MiB, for labels that do not say.
        "default-label-memory" default_label_memory: Option<u64> = optional;
        /// Storage in MB, for labels that do not say.
        "default-label-storage" default_label_storage: Option<u64> = optional;
        /// Limit of cores, for labels that do not say.
        "default-label-cpu-limit" default_label_cpu_limit: Option<u64> = optional;
        /// Limit of memory in MiB, for labels that do not say.
        "default-label-memory-limit" default_label_memory_limit: Option<u64> = optional;
        /// Limit of storage in MB, for labels that do not say.
        "default-label-storage-limit" default_label_storage_limit: Option<u64> = optional;
        /// Other resources, for labels that do not say.
        "default-label-extra-resources" | "default-label-extra_resources" default_label_extra_resources: Table<u64> = default(Table::<u64>::new());
        /// Labels of this pool.
        "labels" labels: Vec<ClusterLabel> = default(Vec::<ClusterLabel>::new()) in (ClusterLabelOuter {
            flavour: outer.flavour,
            cpu: default_label_cpu,
            memory: default_label_memory,
            storage: default_label_storage,
            cpu_limit: default_label_cpu_limit,
            memory_limit: default_label_memory_limit,
            storage_limit: default_label_storage_limit,
            extra_resources: default_label_extra_resources.clone(),
            hardening: hardening.clone(),
        });
    }
}

fn check_pool(pool: &ClusterPool, _map: &Map, decoder: &mut Decoder<'_>) {
    check_dns_label(&pool.common.name, decoder);
}

/// Names of pools and labels become names of objects in the cluster.
fn check_dns_label(name: &Name, decoder: &mut Decoder<'_>) {
    const MAX_LENGTH: usize = 63;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.len() <= MAX_LENGTH
        && name.starts_with(plain)
        && name.ends_with(plain)
        && name.chars().all(|c| plain(c) || c == '-');
    if !fits && !name.is_empty() {
        let message = "the cluster will refuse this name: objects are named after it";
        decoder.lenient("bad-name", name.span, message).map(|finding| {
            finding.help("use at most 63 lower case letters, digits and `-`, with a letter or digit at both ends")
        });
    }
}

choice! {
    /// When an image is fetched.
    enum ImagePull { IfNotPresent = "IfNotPresent", Always = "Always", Never = "Never" }
}

/// What a node of a label is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    Namespace,
    Pod,
    Project,
}

impl Decode<Flavour> for NodeKind {
    fn decode(node: &Rc<YamlNode>, flavour: &Flavour, decoder: &mut Decoder<'_>) -> Option<Self> {
        let text = String::decode(node, &(), decoder)?;
        // Nodepool tests for one word only and takes anything else for the other kind.
        let (kind, usual) = match (flavour, text.as_str()) {
            (Flavour::Kubernetes, "namespace") => (Self::Namespace, true),
            (Flavour::Kubernetes, text) => (Self::Pod, text == "pod"),
            (Flavour::OpenShift, "pod") => (Self::Pod, true),
            (Flavour::OpenShift, text) => (Self::Project, text == "project"),
            (Flavour::OpenShiftPods, text) => (Self::Pod, text == "pod"),
        };
        if !usual {
            let message = format!(
                "this is not a kind of node and is taken for `{}`",
                kind.as_str()
            );
            if let Some(finding) = decoder.lenient("unknown-value", node.span, message) {
                finding.allowed = Self::of(*flavour)
                    .iter()
                    .map(|kind| kind.as_str().to_owned())
                    .collect();
            }
        }
        Some(kind)
    }
}

impl NodeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Pod => "pod",
            Self::Project => "project",
        }
    }

    fn of(flavour: Flavour) -> &'static [Self] {
        match flavour {
            Flavour::Kubernetes => &[Self::Namespace, Self::Pod],
            Flavour::OpenShift => &[Self::Project, Self::Pod],
            Flavour::OpenShiftPods => &[Self::Pod],
        }
    }
}

impl Describe for NodeKind {
    fn type_info() -> TypeInfo {
        type_info(
            "`namespace`, `pod`, `project`",
            serde_json::json!({"type": "string", "examples": ["namespace", "pod", "project"]}),
        )
    }
}

section! {
    /// A variable of the container.
    pub struct EnvironmentVariable (_outer: ()) {
        /// Name.
        "name" name: String = required;
        /// Value.
        "value" [private] value: String = required;
    }
}

section! {
    /// A label in a cluster.
    pub struct ClusterLabel (outer: ClusterLabelOuter) including hardening: Hardening (outer.hardening.clone()) checked by check_label {
        /// Name of an entry of `labels` at the top of the file; also of pods and containers.
        "name" name: Name = required;
        /// `namespace` or `pod` (kubernetes), `project` or `pod` (openshift); openshiftpods has pods only.
        "type" kind: Option<NodeKind> = optional in (outer.flavour);
        /// A pod specification to use as it is.
        "spec" spec: Option<Object> = optional;
        /// Image of the container.
        "image" image: Option<String> = optional;
        /// When the image is fetched.
        "image-pull" image_pull: ImagePull = default(ImagePull::IfNotPresent);
        /// Python interpreter for Ansible.
        "python-path" python_path: String = default("auto".to_owned());
        /// Shell type for Ansible.
        "shell-type" shell_type: Option<String> = optional;
        /// Cores.
        "cpu" cpu: Option<u64> = inherit("the pool's `default-label-cpu`", outer.cpu);
        /// Memory in MiB.
        "memory" memory: Option<u64> = inherit("the pool's `default-label-memory`", outer.memory);
        /// Storage in MB.
        "storage" storage: Option<u64> = inherit("the pool's `default-label-storage`", outer.storage);
        /// Limit of cores.
        "cpu-limit" cpu_limit: Option<u64> = inherit("the pool's default limit, else `cpu`", outer.cpu_limit.or(cpu));
        /// Limit of memory in MiB.
        "memory-limit" memory_limit: Option<u64> = inherit("the pool's default limit, else `memory`", outer.memory_limit.or(memory));
        /// Limit of storage in MB.
        "storage-limit" storage_limit: Option<u64> = inherit("the pool's default limit, else `storage`", outer.storage_limit.or(storage));
        /// How many of `gpu-resource` a pod gets.
        "gpu" gpu: Option<f64> = optional;
        /// Name of the GPU resource.
        "gpu-resource" gpu_resource: Option<String> = optional;
        /// Other resources, counted in limits but not put on pods.
        "extra-resources" extra_resources: Table<u64> = merge("over the pool's `default-label-extra-resources`", outer.extra_resources.clone());
        /// Variables of the container.
        "env" env: Vec<EnvironmentVariable> = default(Vec::<EnvironmentVariable>::new());
        /// Labels of cluster nodes to run on.
        "node-selector" node_selector: Option<Object> = optional;
        /// Scheduler.
        "scheduler-name" scheduler_name: Option<String> = optional;
        /// Whether the container is privileged; not sent when absent.
        "privileged" privileged: Option<bool> = optional;
        /// Volumes, as the API takes them.
        "volumes" volumes: Option<Vec<Object>> = optional;
        /// Volume mounts, as the API takes them.
        "volume-mounts" volume_mounts: Option<Vec<Object>> = optional;
        /// Labels of the objects.
        "labels" labels: Option<Table<String>> = optional;
        /// Labels with templates such as `{request.tenant_name}`.
        "dynamic-labels" dynamic_labels: Table<String> = default(Table::<String>::new());
        /// Annotations of pods.
        "annotations" annotations: Option<Table<String>> = optional;
        /// Runs sshd in the pod and hands it out as an SSH machine.
        "ssh" [ours] ssh: Option<SshAccess> = optional;
        /// A second container with git, sharing a volume.
        "git-sidecar" [ours] git_sidecar: Option<GitSidecar> = optional;
        /// Whether a console daemon is put in the container.
        "console" [ours] console: Console = default(Console::None);
        /// Whether nodes of one buildset share a namespace.
        "share" [ours] share: Share = default(Share::None);
        /// What nodes of one buildset see of each other's namespaces.
        "buildset-peer-access" [ours] buildset_peer_access: PeerAccess = default(PeerAccess::None);
        /// What a project's account may do with the integrated registry.
        "registry-access" [ours] registry_access: RegistryAccess = default(RegistryAccess::Push);
        /// Whether the external route of the integrated registry is reported.
        "registry-external" [ours] registry_external: bool = default(false);
    }
}

/// Keys that go into a pod which is not made when there is a `spec`.
const REPLACED_BY_SPEC: &[&str] = &[
    "image",
    "image-pull",
    "image-pull-secrets",
    "cpu-limit",
    "memory-limit",
    "storage-limit",
    "env",
    "node-selector",
    "scheduler-name",
    "privileged",
    "volumes",
    "volume-mounts",
];

fn check_label(label: &ClusterLabel, map: &Map, decoder: &mut Decoder<'_>) {
    check_dns_label(&label.name, decoder);
    cluster_checks::label(label, map, decoder);
    if let Some(spec) = map.set("spec") {
        for entry in REPLACED_BY_SPEC.iter().filter_map(|key| map.set(key)) {
            let message = format!("`{}` has no effect beside `spec`", entry.key);
            if let Some(finding) = decoder.lenient("ignored-key", entry.key_span, message) {
                finding.label(spec.key_span, "pods are made from this alone");
            }
        }
    }
    if let Some(gpu) = label.gpu
        && gpu.fract() != 0.0
        && let Some(entry) = map.set("gpu")
    {
        decoder.warning(
            "fractional-gpu",
            entry.value.span,
            "most clusters refuse a fraction of an extended resource",
        );
    }
    for (key, other) in [("gpu", "gpu-resource"), ("gpu-resource", "gpu")] {
        if let (Some(entry), None) = (map.set(key), map.set(other)) {
            decoder.lenient(
                "missing-key",
                entry.key_span,
                format!("`{key}` has no effect without `{other}`"),
            );
        }
    }
}

impl ClusterLabel {
    /// What a node of this label is.
    pub fn node_kind(&self) -> NodeKind {
        self.kind.unwrap_or(NodeKind::Pod)
    }
}

/// What depends on the driver and not on the label alone.
fn check_labels(pools: &[ClusterPool], flavour: Flavour, decoder: &mut Decoder<'_>) {
    for label in pools
        .iter()
        .flat_map(|pool| &pool.labels)
        .filter(|label| !label.name.is_empty())
    {
        cluster_checks::flavour(label, flavour, decoder);
        if label.kind.is_none() && flavour != Flavour::OpenShiftPods {
            decoder.error("missing-key", label.name.span, "`type` is required here");
        }
        if label.node_kind() == NodeKind::Pod && label.image.is_none() && label.spec.is_none() {
            decoder.lenient(
                "missing-key",
                label.name.span,
                "a pod needs `image` or `spec`",
            );
        }
    }
}

macro_rules! cluster_drivers {
    ($($section:ident),+) => {
        $(impl DriverSection for $section {
            fn pools(&self) -> Vec<PoolRef<'_>> {
                self.pools.iter().map(pool_ref).collect()
            }

            fn check(&self, decoder: &mut Decoder<'_>) {
                check_labels(&self.pools, Flavour::$section, decoder);
            }

            fn check_references<'c>(
                &'c self,
                references: &mut FileReferences<'c>,
                decoder: &mut Decoder<'_>,
            ) {
                // Labels that need a buildset are errors in the others.
                if Flavour::$section == Flavour::Kubernetes {
                    cluster_checks::ready_nodes(&self.pools, references.labels, decoder);
                }
            }
        })+
    };
}
cluster_drivers!(Kubernetes, OpenShift, OpenShiftPods);

fn pool_ref(pool: &ClusterPool) -> PoolRef<'_> {
    PoolRef {
        common: &pool.common,
        labels: pool
            .labels
            .iter()
            .map(|label| LabelRef::without_image(&label.name))
            .collect(),
    }
}
