//! `driver: aws`.

use super::image::{Connection, image_driver};
use super::image_filters::{ImageFilter, check_filters};
use crate::decode::{Decoder, Strictness};
use crate::provider::{PoolCommon, PoolOuter, ProviderCommon};
use crate::section::section;
use crate::values::{Limit, Name, Seconds, Table, choice};
use crate::yaml::Map;

section! {
    /// A region of AWS.
    pub struct Aws (outer: ProviderCommon) checked by check_storage {
        /// Region.
        "region-name" region_name: String = required;
        /// Profile of the credentials file; the SDK's usual search when absent.
        "profile-name" profile_name: Option<String> = optional;
        /// Operations per second.
        "rate" rate: f64 = default(2.0);
        /// How long a machine may take from running until SSH answers.
        "boot-timeout" boot_timeout: Seconds = default(Seconds::new(180));
        /// How long a machine may take until it is running.
        "launch-timeout" launch_timeout: Seconds = default(Seconds::new(3600));
        /// How often a launch is tried.
        "launch-retries" launch_retries: u64 = default(3);
        /// Limit of machines, for pools that have none.
        "max-servers" max_servers: Limit = default(Limit::NONE);
        /// Limit of cores, for pools that have none.
        "max-cores" max_cores: Limit = default(Limit::NONE);
        /// Limit of memory in MiB, for pools that have none.
        "max-ram" max_ram: Limit = default(Limit::NONE);
        /// Limits by AWS quota code.
        "max-resources" max_resources: Table<u64> = default(Table::<u64>::new());
        /// Where uploads are stored on their way; not needed with `ebs-direct`.
        "object-storage" object_storage: Option<ObjectStorage> = optional;
        /// Format of uploads.
        "image-format" image_format: AwsImageFormat = default(AwsImageFormat::Raw);
        /// How long an import is tried again when AWS has too many of them.
        "image-import-timeout" image_import_timeout: Option<Seconds> = optional;
        /// Program to run after an upload, with the provider, the cloud's image id and the file as arguments.
        "post-upload-hook" post_upload_hook: Option<String> = optional;
        /// Whether machines get a public IPv4 address, for pools that do not say.
        "public-ipv4" public_ipv4: bool = default(true);
        /// Whether machines get an IPv6 address, for pools that do not say.
        "public-ipv6" public_ipv6: bool = default(false);
        /// Whether the private address is used, for pools that do not say.
        "use-internal-ip" use_internal_ip: bool = default(false);
        /// Whether host keys are gathered, for pools that do not say.
        "host-key-checking" host_key_checking: bool = default(true);
        /// Images that exist in AWS already.
        "cloud-images" cloud_images: Vec<AwsCloudImage> = default(Vec::<AwsCloudImage>::new());
        /// Built images that are uploaded.
        "diskimages" diskimages: Vec<AwsDiskImage> = default(Vec::<AwsDiskImage>::new());
        /// Groups of labels with common limits.
        "pools" pools: Vec<AwsPool> = required in (AwsPoolOuter {
            pool: PoolOuter { priority: outer.priority, max_servers },
            max_cores,
            max_ram,
            max_resources: max_resources.clone(),
            public_ipv4,
            public_ipv6,
            use_internal_ip,
            host_key_checking,
        });
    }
}

fn check_storage(aws: &Aws, map: &Map, decoder: &mut Decoder<'_>) {
    if aws.object_storage.is_some() {
        return;
    }
    if let Some(image) = aws
        .diskimages
        .iter()
        .find(|image| image.import_method != ImportMethod::EbsDirect)
    {
        let message = "`object-storage` is required here, since an image is uploaded through it";
        if let Some(finding) = decoder.lenient("missing-key", map.head(), message) {
            finding
                .label(image.name.span, "this one")
                .help("or set `import-method: ebs-direct` on every image");
        }
    }
}

section! {
    /// A bucket for uploads.
    pub struct ObjectStorage (_outer: ()) {
        /// Name of the bucket.
        "bucket-name" bucket_name: String = required;
    }
}

choice! {
    /// Formats AWS imports.
    enum AwsImageFormat { Raw = "raw", Ova = "ova", Vhd = "vhd", Vhdx = "vhdx", Vmdk = "vmdk" }
}

choice! {
    /// Ways to make an AMI of an image.
    enum ImportMethod { Snapshot = "snapshot", EbsDirect = "ebs-direct", Image = "image" }
}

choice! {
    /// Which instance metadata service an AMI asks for.
    enum ImdsSupport { V2 = "v2.0", }
}

choice! {
    /// Whether the second version of the instance metadata service is enforced.
    enum Imdsv2 { Optional = "optional", Required = "required" }
}

choice! {
    /// How a fleet chooses among its instance types.
    enum AllocationStrategy {
        Prioritized = "prioritized",
        PriceCapacityOptimized = "price-capacity-optimized",
        CapacityOptimized = "capacity-optimized",
        Diversified = "diversified",
        LowestPrice = "lowest-price",
    }
}

section! {
    /// An image that exists in AWS.
    pub struct AwsCloudImage (_outer: ()) including connection: Connection (()) checked by check_cloud_image {
        /// Name to refer to it by.
        "name" name: Name = required;
        /// User to log in as.
        "username" username: String = required;
        /// AMI id.
        "image-id" image_id: Option<String> = optional;
        /// Conditions; the newest image that meets them is used.
        "image-filters" image_filters: Option<Vec<ImageFilter>> = optional;
        /// Python interpreter for Ansible.
        "python-path" python_path: String = default("auto".to_owned());
        /// Shell type for Ansible.
        "shell-type" shell_type: Option<String> = optional;
    }
}

fn check_cloud_image(image: &AwsCloudImage, map: &Map, decoder: &mut Decoder<'_>) {
    let filters = image.image_filters.as_ref();
    check_filters(filters, map, decoder, Strictness::Lenient);
    decoder.exactly_one(map, &["image-id", "image-filters"], Strictness::Lenient);
}

section! {
    /// A built image in AWS.
    pub struct AwsDiskImage (_outer: ()) including connection: Connection (()) checked by check_disk_image {
        /// Name of an entry of `diskimages` or `zuul-images` at the top of the file.
        "name" name: Name = required;
        /// Whether uploads are suspended.
        "pause" pause: bool = default(false);
        /// User to log in as; the image's own when absent.
        "username" [deprecated] username: Option<String> = optional;
        /// Python interpreter for Ansible; the image's own when absent.
        "python-path" python_path: Option<String> = optional;
        /// Shell type for Ansible; the image's own when absent.
        "shell-type" shell_type: Option<String> = optional;
        /// Processor architecture of the AMI.
        "architecture" architecture: String = default("x86_64".to_owned());
        /// Whether the AMI supports enhanced networking.
        "ena-support" ena_support: bool = default(true);
        /// Size of the root volume in GiB; the snapshot's when absent.
        "volume-size" volume_size: Option<u64> = optional;
        /// Type of the root volume.
        "volume-type" volume_type: String = default("gp3".to_owned());
        /// Operations per second of the root volume.
        "iops" iops: Option<u64> = optional;
        /// Throughput of the root volume in MiB/s.
        "throughput" throughput: Option<u64> = optional;
        /// How the AMI is made.
        "import-method" import_method: ImportMethod = default(ImportMethod::Snapshot);
        /// Which instance metadata service the AMI asks for.
        "imds-support" imds_support: Option<ImdsSupport> = optional;
        /// Tags, over the image's own `metadata`.
        "tags" tags: Table<String> = default(Table::<String>::new());
    }
}

fn check_disk_image(image: &AwsDiskImage, map: &Map, decoder: &mut Decoder<'_>) {
    if image.import_method == ImportMethod::Image
        && let Some(entry) = map.set("imds-support")
    {
        decoder.error(
            "exclusive-keys",
            entry.key_span,
            "`imds-support` cannot be set with `import-method: image`",
        );
    }
}

/// What a pool takes from its provider.
#[derive(Debug, Clone)]
pub(crate) struct AwsPoolOuter {
    pool: PoolOuter,
    max_cores: Limit,
    max_ram: Limit,
    max_resources: Table<u64>,
    public_ipv4: bool,
    public_ipv6: bool,
    use_internal_ip: bool,
    host_key_checking: bool,
}

section! {
    /// A group of labels in AWS.
    pub struct AwsPool (outer: AwsPoolOuter) including common: PoolCommon (outer.pool) checked by check_pool {
        /// Security group.
        "security-group-id" security_group_id: Option<String> = optional;
        /// Subnet.
        "subnet-id" subnet_id: Option<String> = optional;
        /// Zone.
        "availability-zone" availability_zone: Option<String> = optional;
        /// Older name of `public-ipv4`, which it overrides.
        "public-ip-address" [deprecated] public_ip_address: Option<bool> = optional;
        /// Whether machines get a public IPv4 address.
        "public-ipv4" public_ipv4: bool = inherit("the provider's", outer.public_ipv4);
        /// Whether machines get an IPv6 address.
        "public-ipv6" public_ipv6: bool = inherit("the provider's", outer.public_ipv6);
        /// Whether the private address is used.
        "use-internal-ip" use_internal_ip: bool = inherit("the provider's", outer.use_internal_ip);
        /// Whether host keys are gathered before a machine is ready.
        "host-key-checking" host_key_checking: bool = inherit("the provider's", outer.host_key_checking);
        /// Limit of cores.
        "max-cores" max_cores: Limit = inherit("the provider's", outer.max_cores);
        /// Limit of memory in MiB.
        "max-ram" max_ram: Limit = inherit("the provider's", outer.max_ram);
        /// Limits by AWS quota code.
        "max-resources" max_resources: Table<u64> = merge("over the provider's", outer.max_resources.clone());
        /// Labels of this pool.
        "labels" labels: Vec<AwsLabel> = required;
    }
}

fn check_pool(pool: &AwsPool, _map: &Map, decoder: &mut Decoder<'_>) {
    for label in pool.labels.iter().filter(|label| label.dedicated_host) {
        if pool.availability_zone.is_none() {
            decoder
                .error(
                    "missing-key",
                    label.name.span,
                    "`dedicated-host` needs the pool's `availability-zone`",
                )
                .map(|finding| finding.label(pool.common.name.span, "this pool has none"));
        }
    }
}

section! {
    /// A label in an AWS pool.
    pub struct AwsLabel (_outer: ()) checked by check_label {
        /// Name of an entry of `labels` at the top of the file.
        "name" name: Name = required;
        /// SSH key pair in AWS.
        "key-name" key_name: String = required;
        /// Name of a built image of this provider; or `cloud-image`.
        "diskimage" diskimage: Option<Name> = optional;
        /// Name of a cloud image of this provider; or `diskimage`.
        "cloud-image" cloud_image: Option<Name> = optional;
        /// Instance type; or `fleet`.
        "instance-type" instance_type: Option<String> = optional;
        /// Instance types to choose from; or `instance-type`.
        "fleet" fleet: Option<Fleet> = optional;
        /// Whether the instance is optimised for EBS.
        "ebs-optimized" ebs_optimized: bool = default(false);
        /// Whether spot instances are used.
        "use-spot" use_spot: bool = default(false);
        /// Whether each machine gets a host of its own.
        "dedicated-host" dedicated_host: bool = default(false);
        /// Type of the root volume.
        "volume-type" volume_type: Option<String> = optional;
        /// Size of the root volume in GiB.
        "volume-size" volume_size: Option<u64> = optional;
        /// Operations per second of the root volume.
        "iops" iops: Option<u64> = optional;
        /// Throughput of the root volume in MiB/s.
        "throughput" throughput: Option<u64> = optional;
        /// User data for cloud-init.
        "userdata" [private] userdata: Option<String> = optional;
        /// Instance profile.
        "iam-instance-profile" iam_instance_profile: Option<InstanceProfile> = optional;
        /// Whether the second version of the instance metadata service is enforced.
        "imdsv2" imdsv2: Option<Imdsv2> = optional;
        /// Tags.
        "tags" tags: Table<String> = default(Table::<String>::new());
        /// Tags with templates such as `{request.tenant_name}`.
        "dynamic-tags" dynamic_tags: Table<String> = default(Table::<String>::new());
    }
}

fn check_label(label: &AwsLabel, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(map, &["cloud-image", "diskimage"], Strictness::Lenient);
    decoder.exactly_one(map, &["instance-type", "fleet"], Strictness::Lenient);
    if label.dedicated_host && label.use_spot {
        decoder.at_most_one(map, &["dedicated-host", "use-spot"], Strictness::Strict);
    }
}

section! {
    /// Instance types to choose from.
    pub struct Fleet (_outer: ()) {
        /// Instance types.
        "instance-types" instance_types: Vec<String> = required;
        /// How one is chosen.
        "allocation-strategy" allocation_strategy: AllocationStrategy = required;
    }
}

section! {
    /// An instance profile, by name or by ARN.
    pub struct InstanceProfile (_outer: ()) checked by check_profile {
        /// Name.
        "name" name: Option<String> = optional;
        /// ARN.
        "arn" arn: Option<String> = optional;
    }
}

fn check_profile(_profile: &InstanceProfile, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(map, &["name", "arn"], Strictness::Lenient);
}

image_driver!(Aws {
    fn image_format<'s>(&'s self, _: Option<&'s str>) -> Option<&'s str> {
        Some(self.image_format.as_str())
    }
});
