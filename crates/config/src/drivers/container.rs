//! `driver: container`: machines as containers on this host.

use super::image::{Connection, image_access, image_driver};
use super::image_filters::{ImageFilter, check_filters};
use crate::decode::{Decoder, Strictness};
use crate::provider::{PoolCommon, PoolOuter, ProviderCommon};
use crate::section::section;
use crate::values::{Limit, Name, OneOrMany, Port, Seconds, Table, choice};
use crate::yaml::Map;

section! {
    /// Containers on this host, through the socket of Podman or Docker.
    pub struct Container (outer: ProviderCommon) {
        /// Socket of the runtime; the usual places of Podman and Docker are tried when absent.
        "socket" [ours] socket: Option<String> = optional;
        /// Network the containers join; the runtime's default when absent.
        "network" [ours] network: Option<String> = optional;
        /// Address on which SSH ports are published.
        "publish-address" [ours] publish_address: String = default("127.0.0.1".to_owned());
        /// How long a container may take from running until SSH answers.
        "boot-timeout" [ours] boot_timeout: Seconds = default(Seconds::new(60));
        /// How long a container may take until it runs.
        "launch-timeout" [ours] launch_timeout: Seconds = default(Seconds::new(300));
        /// How often a launch is tried.
        "launch-retries" [ours] launch_retries: u64 = default(3);
        /// Built images that are loaded into the runtime.
        "diskimages" [ours] diskimages: Vec<ContainerDiskImage> = default(Vec::<ContainerDiskImage>::new());
        /// Images the runtime has or can pull.
        "cloud-images" [ours] cloud_images: Vec<ContainerCloudImage> = default(Vec::<ContainerCloudImage>::new());
        /// Groups of labels with common limits.
        "pools" [ours] pools: Vec<ContainerPool> = default(Vec::<ContainerPool>::new()) in (PoolOuter { priority: outer.priority, max_servers: Limit::NONE });
    }
}

section! {
    /// A built image in the runtime.
    pub struct ContainerDiskImage (_outer: ()) including connection: Connection (()) {
        /// Name of an entry of `diskimages` or `zuul-images` at the top of the file.
        "name" [ours] name: Name = required;
        /// Whether uploads are suspended.
        "pause" [ours] pause: bool = default(false);
    }
}

section! {
    /// An image the runtime has or can pull.
    pub struct ContainerCloudImage (_outer: ()) including connection: Connection (()) checked by check_cloud_image {
        /// Name to refer to it by; also the reference when nothing else identifies it.
        "name" [ours] name: Name = required;
        /// Id in the runtime.
        "image-id" [ours] image_id: Option<String> = optional;
        /// Reference, such as `debian:12`.
        "image-name" [ours] image_name: Option<String> = optional;
        /// Conditions on labels and reference; the newest image that meets them is used.
        "image-filters" [ours] image_filters: Option<Vec<ImageFilter>> = optional;
        /// User to log in as.
        "username" [ours] username: Option<String> = optional;
        /// Python interpreter for Ansible.
        "python-path" [ours] python_path: String = default("auto".to_owned());
        /// Shell type for Ansible.
        "shell-type" [ours] shell_type: Option<String> = optional;
    }
}

fn check_cloud_image(image: &ContainerCloudImage, map: &Map, decoder: &mut Decoder<'_>) {
    let filters = image.image_filters.as_ref();
    check_filters(filters, map, decoder, Strictness::Strict);
    decoder.at_most_one(
        map,
        &["image-id", "image-name", "image-filters"],
        Strictness::Strict,
    );
}

section! {
    /// A group of containers.
    pub struct ContainerPool (outer: PoolOuter) including common: PoolCommon (*outer) {
        /// Limit of cores.
        "max-cores" [ours] max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB.
        "max-ram" [ours] max_ram: Limit = default(Limit::NONE);
        /// Labels of this pool.
        "labels" [ours] labels: Vec<ContainerLabel> = default(Vec::<ContainerLabel>::new());
    }
}

choice! {
    /// How a container is reached.
    enum Reach { Ssh = "ssh", Exec = "exec" }
}

section! {
    /// A label whose nodes are containers.
    pub struct ContainerLabel (_outer: ()) checked by check_label {
        /// Name of an entry of `labels` at the top of the file.
        "name" [ours] name: Name = required;
        /// Name of a built image of this provider.
        "diskimage" [ours] diskimage: Option<Name> = optional;
        /// Name of a cloud image of this provider.
        "cloud-image" [ours] cloud_image: Option<Name> = optional;
        /// Reference of an image, without an entry in `cloud-images`.
        "image" [ours] image: Option<String> = optional;
        /// How the container is reached.
        "connection" [ours] connection: Reach = default(Reach::Ssh);
        /// Port of sshd in the container.
        "ssh-port" [ours] ssh_port: Port = default(Port(22));
        /// Public keys that may log in.
        "authorized-keys" [ours] authorized_keys: OneOrMany<String> = default(OneOrMany::<String>::default());
        /// Whether host keys are gathered before the node is ready.
        "host-key-checking" [ours] host_key_checking: bool = default(true);
        /// Cores, whole or a fraction; all of the host when absent.
        "cpus" [ours] cpus: Option<f64> = optional;
        /// Memory in MiB; all of the host when absent.
        "memory" [ours] memory: Option<u64> = optional;
        /// Limit of processes.
        "processes" [ours] processes: Option<u64> = optional;
        /// Other limits of a process by their usual names, such as `nofile`; the runtime's own when absent.
        "ulimits" [ours] ulimits: Table<u64> = default(Table::<u64>::new());
        /// Command; the image's own when absent.
        "command" [ours] command: Option<Vec<String>> = optional;
        /// Variables of the container.
        "env" [ours private] env: Table<String> = default(Table::<String>::new());
        /// Host directories, as `host:container[:ro]`.
        "volumes" [ours] volumes: Vec<String> = default(Vec::<String>::new());
        /// Whether the container is privileged.
        "privileged" [ours] privileged: bool = default(false);
    }
}

fn check_label(label: &ContainerLabel, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(
        map,
        &["diskimage", "cloud-image", "image"],
        Strictness::Strict,
    );
    if let (Some(cpus), Some(entry)) = (label.cpus, map.set("cpus"))
        && cpus <= 0.0
    {
        decoder.error(
            "out-of-range",
            entry.value.span,
            "a container needs more than 0 cpus",
        );
    }
}

image_driver!(Container {
    fn image_format<'s>(&'s self, _: Option<&'s str>) -> Option<&'s str> {
        Some("tar")
    }
});
image_access!(Container);
