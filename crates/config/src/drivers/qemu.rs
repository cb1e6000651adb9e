//! `driver: qemu`: virtual machines on this host.

use super::image::{Connection, image_access, image_driver};
use super::image_filters::{ImageFilter, check_filters};
use crate::decode::{Decoder, Strictness};
use crate::provider::{PoolCommon, PoolOuter, ProviderCommon};
use crate::section::section;
use crate::values::{Limit, Name, OneOrMany, Seconds, choice};
use crate::yaml::Map;

choice! {
    /// What runs the guest's instructions.
    enum Accelerator { Auto = "auto", Kvm = "kvm", Tcg = "tcg" }
}

choice! {
    /// How guests reach the network.
    enum QemuNetwork { User = "user", Bridge = "bridge" }
}

section! {
    /// Virtual machines on this host.
    pub struct Qemu (outer: ProviderCommon) checked by check_provider {
        /// Program to run; found by architecture when absent.
        "binary" [ours] binary: Option<String> = optional;
        /// Architecture of the guests; the host's when absent.
        "architecture" [ours] architecture: Option<String> = optional;
        /// Machine type; QEMU's default when absent.
        "machine" [ours] machine: Option<String> = optional;
        /// What runs the guest's instructions; `auto` uses KVM when a probe shows that it works.
        "accelerator" [ours] accelerator: Accelerator = default(Accelerator::Auto);
        /// Firmware image; QEMU's default when absent.
        "firmware" [ours] firmware: Option<String> = optional;
        /// Variables of a firmware that has them in a second file, of which each guest gets a copy.
        "firmware-variables" [ours] firmware_variables: Option<String> = optional;
        /// Where overlays, seeds and consoles are kept; below `state-dir` when absent.
        "directory" [ours] directory: Option<String> = optional;
        /// How guests reach the network; `user` forwards an SSH port.
        "network" [ours] network: QemuNetwork = default(QemuNetwork::User);
        /// Bridge to attach guests to.
        "bridge" [ours] bridge: Option<String> = optional;
        /// Address on which SSH ports are published with `network: user`.
        "publish-address" [ours] publish_address: String = default("127.0.0.1".to_owned());
        /// How long a guest may take from start until SSH answers.
        "boot-timeout" [ours] boot_timeout: Seconds = default(Seconds::new(300));
        /// How long a guest may take until it runs.
        "launch-timeout" [ours] launch_timeout: Seconds = default(Seconds::new(600));
        /// How often a launch is tried.
        "launch-retries" [ours] launch_retries: u64 = default(3);
        /// Built images that guests boot from.
        "diskimages" [ours] diskimages: Vec<QemuDiskImage> = default(Vec::<QemuDiskImage>::new());
        /// Image files that exist already.
        "cloud-images" [ours] cloud_images: Vec<QemuCloudImage> = default(Vec::<QemuCloudImage>::new());
        /// Groups of labels with common limits.
        "pools" [ours] pools: Vec<QemuPool> = default(Vec::<QemuPool>::new()) in (PoolOuter { priority: outer.priority, max_servers: Limit::NONE });
    }
}

fn check_provider(qemu: &Qemu, map: &Map, decoder: &mut Decoder<'_>) {
    if let (Some(entry), None) = (map.set("firmware-variables"), &qemu.firmware) {
        decoder.error(
            "missing-key",
            entry.key_span,
            "`firmware-variables` needs `firmware`",
        );
    }
    if qemu.network == QemuNetwork::Bridge && qemu.bridge.is_none() {
        decoder.error(
            "missing-key",
            map.head(),
            "`bridge` is required with `network: bridge`",
        );
    }
}

section! {
    /// A built image that guests boot from.
    pub struct QemuDiskImage (_outer: ()) including connection: Connection (()) {
        /// Name of an entry of `diskimages` or `zuul-images` at the top of the file.
        "name" [ours] name: Name = required;
        /// Whether uploads are suspended.
        "pause" [ours] pause: bool = default(false);
    }
}

section! {
    /// An image file that exists already.
    pub struct QemuCloudImage (_outer: ()) including connection: Connection (()) checked by check_cloud_image {
        /// Name to refer to it by.
        "name" [ours] name: Name = required;
        /// The file.
        "path" [ours] path: Option<String> = optional;
        /// Conditions on the file name; the newest file that meets them is used.
        "image-filters" [ours] image_filters: Option<Vec<ImageFilter>> = optional;
        /// User to log in as.
        "username" [ours] username: Option<String> = optional;
        /// Python interpreter for Ansible.
        "python-path" [ours] python_path: String = default("auto".to_owned());
        /// Shell type for Ansible.
        "shell-type" [ours] shell_type: Option<String> = optional;
    }
}

fn check_cloud_image(image: &QemuCloudImage, map: &Map, decoder: &mut Decoder<'_>) {
    let filters = image.image_filters.as_ref();
    check_filters(filters, map, decoder, Strictness::Strict);
    decoder.exactly_one(map, &["path", "image-filters"], Strictness::Strict);
}

section! {
    /// A group of virtual machines.
    pub struct QemuPool (outer: PoolOuter) including common: PoolCommon (*outer) {
        /// Limit of cores.
        "max-cores" [ours] max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB.
        "max-ram" [ours] max_ram: Limit = default(Limit::NONE);
        /// Labels of this pool.
        "labels" [ours] labels: Vec<QemuLabel> = default(Vec::<QemuLabel>::new());
    }
}

section! {
    /// A label whose nodes are virtual machines.
    pub struct QemuLabel (_outer: ()) checked by check_label {
        /// Name of an entry of `labels` at the top of the file.
        "name" [ours] name: Name = required;
        /// Name of a built image of this provider.
        "diskimage" [ours] diskimage: Option<Name> = optional;
        /// Name of a cloud image of this provider.
        "cloud-image" [ours] cloud_image: Option<Name> = optional;
        /// Cores.
        "cpus" [ours] cpus: u64 = default(1);
        /// Memory in MiB.
        "memory" [ours] memory: u64 = default(1024);
        /// Size of the disk in GiB; the image's when absent.
        "disk-size" [ours] disk_size: Option<u64> = optional;
        /// Kernel to boot directly; the firmware boots the disk when absent.
        "kernel" [ours] kernel: Option<String> = optional;
        /// Initial RAM disk for that kernel.
        "initrd" [ours] initrd: Option<String> = optional;
        /// Command line of that kernel.
        "kernel-args" [ours] kernel_args: Option<String> = optional;
        /// User data for cloud-init.
        "userdata" [ours private] userdata: Option<String> = optional;
        /// Public keys that may log in.
        "authorized-keys" [ours] authorized_keys: OneOrMany<String> = default(OneOrMany::<String>::default());
        /// Whether host keys are gathered before the node is ready.
        "host-key-checking" [ours] host_key_checking: bool = default(true);
        /// Whether the serial console is logged when SSH does not answer.
        "console-log" [ours] console_log: bool = default(true);
        /// Whether guests start from saved memory, with `network: user` and an image that is made for it.
        "warm-template" [ours] warm_template: bool = default(false);
    }
}

fn check_label(label: &QemuLabel, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(map, &["diskimage", "cloud-image"], Strictness::Strict);
    for key in ["initrd", "kernel-args"] {
        if let (Some(entry), None) = (map.set(key), &label.kernel) {
            decoder.error(
                "missing-key",
                entry.key_span,
                format!("`{key}` needs `kernel`"),
            );
        }
    }
    for (key, value) in [("cpus", label.cpus), ("memory", label.memory)] {
        if let (Some(entry), 0) = (map.set(key), value) {
            decoder.error(
                "out-of-range",
                entry.value.span,
                format!("a machine needs more than 0 {key}"),
            );
        }
    }
}

image_driver!(Qemu {
    fn image_format<'s>(&'s self, _: Option<&'s str>) -> Option<&'s str> {
        Some("qcow2")
    }
});
image_access!(Qemu);
