//! `driver: openstack`, and `driver: fake`, which takes the same keys.

use super::image::{Connection, image_access, image_driver};
use super::image_filters::{ImageFilter, check_filters};
use super::simulate::Simulate;
use crate::decode::{Decoder, Strictness};
use crate::provider::{DriverSection, PoolCommon, PoolOuter, PoolRef, ProviderCommon};
use crate::section::section;
use crate::values::{Limit, Name, Object, Seconds, Table, choice};
use crate::yaml::Map;

section! {
    /// An OpenStack cloud.
    pub struct OpenStack (outer: ProviderCommon) including settings: OpenStackSettings (outer.clone()) {
        /// Entry of clouds.yaml.
        "cloud" cloud: String = required;
    }
}

section! {
    /// A simulated OpenStack cloud. A provider whose name starts with `fake` is always one.
    pub struct Fake (outer: ProviderCommon) including settings: OpenStackSettings (outer.clone()) {
        /// Entry of clouds.yaml; not looked at.
        "cloud" cloud: String = default("fake".to_owned());
        /// How the simulated cloud behaves.
        "simulate" [ours] simulate: Simulate = default(Simulate::default());
    }
}

section! {
    /// What an OpenStack cloud has besides its name.
    pub struct OpenStackSettings (outer: ProviderCommon) {
        /// Region, for clouds that have several.
        "region-name" region_name: Option<String> = optional;
        /// Seconds between two API calls; without effect on the simulated cloud of `driver: fake`.
        "rate" rate: Seconds = default(Seconds::new(1));
        /// How long a machine may take from active until SSH answers.
        "boot-timeout" boot_timeout: Seconds = default(Seconds::new(60));
        /// How long a machine may take until it is active.
        "launch-timeout" launch_timeout: Seconds = default(Seconds::new(3600));
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// How long an upload may take.
        "image-upload-timeout" image_upload_timeout: Seconds = default(Seconds::new(3600));
        /// Name of uploaded images; knows `{image_name}`, `{upload_id}` and `{timestamp}`.
        "image-name-format" image_name_format: String = default("{image_name}-{timestamp}".to_owned());
        /// Whether images are staged and then imported by Glance, for clouds that convert or distribute them at that.
        "image-import" [ours] image_import: bool = default(false);
        /// How files are compressed that a builder converts for this cloud; `zstd` is made several times faster, for
        /// clouds with QEMU 5.1 or later.
        "image-compression" [ours] image_compression: ImageCompression = default(ImageCompression::Zlib);
        /// Program to run after an upload, with the provider, the cloud's image id and the file as arguments.
        "post-upload-hook" post_upload_hook: Option<String> = optional;
        /// Whether unattached floating IPs are removed.
        "clean-floating-ips" clean_floating_ips: bool = default(false);
        /// How often ports that are DOWN are removed; 0 is never.
        "port-cleanup-interval" port_cleanup_interval: Seconds = default(Seconds::new(600));
        /// Has no effect any more.
        "nodepool-id" [deprecated] nodepool_id: Option<String> = optional;
        /// Built images that are uploaded to this cloud.
        "diskimages" diskimages: Vec<OpenStackDiskImage> = default(Vec::<OpenStackDiskImage>::new());
        /// Images that exist in this cloud already.
        "cloud-images" cloud_images: Vec<OpenStackCloudImage> = default(Vec::<OpenStackCloudImage>::new());
        /// Groups of labels with common limits.
        "pools" pools: Vec<OpenStackPool> = default(Vec::<OpenStackPool>::new()) in (PoolOuter { priority: outer.priority, max_servers: Limit::NONE });
    }
}

choice! {
    /// How converted files are compressed.
    enum ImageCompression { Zlib = "zlib", Zstd = "zstd", None = "none" }
}

section! {
    /// A built image in an OpenStack cloud.
    pub struct OpenStackDiskImage (_outer: ()) including connection: Connection (()) {
        /// Name of an entry of `diskimages` or `zuul-images` at the top of the file.
        "name" name: Name = required;
        /// Whether uploads are suspended.
        "pause" pause: bool = default(false);
        /// Whether machines get a config drive; the cloud decides when absent.
        "config-drive" config_drive: Option<bool> = optional;
        /// Image properties, over the image's own `metadata`.
        "meta" meta: Object = default(Object::new());
        /// Image tags: words without a value.
        "tags" [ours] tags: Vec<String> = default(Vec::<String>::new());
    }
}

section! {
    /// An image that exists in an OpenStack cloud.
    pub struct OpenStackCloudImage (_outer: ()) including connection: Connection (()) checked by check_cloud_image {
        /// Name to refer to it by; also its name in the cloud when nothing else identifies it.
        "name" name: Name = required;
        /// Id in the cloud.
        "image-id" image_id: Option<String> = optional;
        /// Name in the cloud.
        "image-name" image_name: Option<String> = optional;
        /// Conditions on properties, tags and name; the newest active image that meets them is used.
        "image-filters" [ours] image_filters: Option<Vec<ImageFilter>> = optional;
        /// User to log in as.
        "username" username: Option<String> = optional;
        /// Python interpreter for Ansible.
        "python-path" python_path: String = default("auto".to_owned());
        /// Shell type for Ansible.
        "shell-type" shell_type: Option<String> = optional;
        /// Whether machines get a config drive; the cloud decides when absent.
        "config-drive" config_drive: Option<bool> = optional;
    }
}

fn check_cloud_image(image: &OpenStackCloudImage, map: &Map, decoder: &mut Decoder<'_>) {
    let filters = image.image_filters.as_ref();
    check_filters(filters, map, decoder, Strictness::Strict);
    decoder.at_most_one(
        map,
        &["image-id", "image-name", "image-filters"],
        Strictness::Lenient,
    );
}

/// What a label takes from its pool.
#[derive(Debug, Clone)]
pub(crate) struct LabelOuter {
    networks: Vec<String>,
    host_key_checking: bool,
}

section! {
    /// A group of labels in an OpenStack cloud.
    pub struct OpenStackPool (outer: PoolOuter) including common: PoolCommon (*outer) {
        /// Limit of cores.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limit of volumes.
        "max-volumes" max_volumes: Limit = default(Limit::NONE);
        /// Limit of volume storage in GB.
        "max-volume-gb" max_volume_gb: Limit = default(Limit::NONE);
        /// Whether only the limits of the pool count, not the cloud's quota.
        "ignore-provider-quota" ignore_provider_quota: bool = default(false);
        /// Zones to use, one by chance for each request; empty are all zones.
        "availability-zones" availability_zones: Vec<String> = default(Vec::<String>::new());
        /// Names or ids of networks.
        "networks" networks: Vec<String> = default(Vec::<String>::new());
        /// Names or ids of security groups.
        "security-groups" security_groups: Vec<String> = default(Vec::<String>::new());
        /// Whether machines without a public address get a floating IP.
        "auto-floating-ip" auto_floating_ip: bool = default(true);
        /// Whether host keys are gathered before a machine is ready.
        "host-key-checking" host_key_checking: bool = default(true);
        /// Labels of this pool.
        "labels" labels: Vec<OpenStackLabel> = default(Vec::<OpenStackLabel>::new()) in (LabelOuter { networks: networks.clone(), host_key_checking });
    }
}

section! {
    /// A label in an OpenStack pool.
    pub struct OpenStackLabel (outer: LabelOuter) checked by check_label {
        /// Name of an entry of `labels` at the top of the file.
        "name" name: Name = required;
        /// Name of a built image of this provider; or `cloud-image`.
        "diskimage" diskimage: Option<Name> = optional;
        /// Name of a cloud image of this provider; or `diskimage`.
        "cloud-image" cloud_image: Option<Name> = optional;
        /// Least memory in MiB; the smallest flavor that has it is used.
        "min-ram" min_ram: Option<u64> = optional;
        /// Name or id of a flavor; with `min-ram`, a part of its name.
        "flavor-name" flavor_name: Option<String> = optional;
        /// SSH key pair in the cloud.
        "key-name" key_name: Option<String> = optional;
        /// Whether the console is logged when SSH does not answer.
        "console-log" console_log: bool = default(false);
        /// Whether machines boot from a volume.
        "boot-from-volume" boot_from_volume: bool = default(false);
        /// Size of that volume in GB.
        "volume-size" volume_size: u64 = default(50);
        /// Metadata of the machine.
        "instance-properties" instance_properties: Object = default(Object::new());
        /// Metadata with templates such as `{request.tenant_name}`.
        "dynamic-instance-properties" [private] dynamic_instance_properties: Table<String> = default(Table::<String>::new());
        /// User data for cloud-init.
        "userdata" [private] userdata: Option<String> = optional;
        /// Names or ids of networks.
        "networks" networks: Vec<String> = inherit("the pool's", outer.networks.clone());
        /// Whether host keys are gathered before a machine is ready.
        "host-key-checking" host_key_checking: bool = inherit("the pool's", outer.host_key_checking);
    }
}

fn check_label(_label: &OpenStackLabel, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(map, &["diskimage", "cloud-image"], Strictness::Lenient);
    decoder.at_least_one(map, &["min-ram", "flavor-name"], Strictness::Lenient);
}

image_driver!(OpenStackSettings);
image_access!(OpenStackSettings);

macro_rules! delegate_to_settings {
    ($($section:ty),+) => {
        $(impl DriverSection for $section {
            fn pools(&self) -> Vec<PoolRef<'_>> {
                self.settings.pools()
            }

            fn diskimages(&self) -> Vec<&Name> {
                self.settings.diskimages()
            }

            fn paused_diskimages(&self) -> Vec<&Name> {
                self.settings.paused_diskimages()
            }

            fn cloud_images(&self) -> Vec<&Name> {
                self.settings.cloud_images()
            }

            fn image_filters(&self) -> Vec<(&Name, &[ImageFilter])> {
                self.settings.image_filters()
            }

            fn image_format<'s>(&'s self, cloud_format: Option<&'s str>) -> Option<&'s str> {
                Some(cloud_format.unwrap_or("qcow2"))
            }

            fn cloud(&self) -> Option<(&str, Option<&str>)> {
                Some((&self.cloud, self.settings.region_name.as_deref()))
            }

            /// Nodepool's OpenStack driver checks the top of the file only.
            fn allows_images_without_upload(&self) -> bool {
                true
            }
        })+
    };
}
delegate_to_settings!(OpenStack, Fake);
