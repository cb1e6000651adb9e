//! The sections of each driver.

mod aws;
mod cluster;
mod cluster_checks;
mod cluster_extras;
mod container;
mod image;
mod image_filters;
mod metastatic;
mod openstack;
mod qemu;
mod simulate;
mod static_nodes;

pub use aws::{
    AllocationStrategy, Aws, AwsCloudImage, AwsDiskImage, AwsImageFormat, AwsLabel, AwsPool, Fleet,
    ImdsSupport, Imdsv2, ImportMethod, InstanceProfile, ObjectStorage,
};
pub use cluster::{
    Affinity, ClusterLabel, ClusterPool, EnvironmentVariable, Flavour, ImagePull, Kubernetes,
    NodeKind, OpenShift, OpenShiftPods,
};
pub use cluster_extras::{
    Console, Expose, Gateway, GitSidecar, Hardening, PeerAccess, PullSecret, RegistryAccess,
    RestartPolicy, Share, SshAccess,
};
pub use container::{
    Container, ContainerCloudImage, ContainerDiskImage, ContainerLabel, ContainerPool, Reach,
};
pub use image::{Connection, ImageAccess};
pub use image_filters::ImageFilter;
pub use metastatic::{Metastatic, MetastaticLabel, MetastaticPool};
pub use openstack::{
    Fake, ImageCompression, OpenStack, OpenStackCloudImage, OpenStackDiskImage, OpenStackLabel,
    OpenStackPool, OpenStackSettings,
};
pub use qemu::{
    Accelerator, Qemu, QemuCloudImage, QemuDiskImage, QemuLabel, QemuNetwork, QemuPool,
};
pub use simulate::{Failure, Failures, Simulate, SimulatedFlavor, SimulatedQuota, SimulatedTime};
pub use static_nodes::{Static, StaticNode, StaticPool, Words};
