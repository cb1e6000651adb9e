//! `driver: qemu`: virtual machines on this host.
//!
//! Everything is kept in one directory. Each machine has a record, written before anything else of the machine exists
//! and removed after everything else, and a directory with its disk, seed and console:
//!
//! ```text
//! <directory>/machines/<id>.json     record: tags, size, and the process that runs it
//!                      <id>.lock     locked by the process that runs it, from its start
//!                      <id>/         disk.qcow2, seed.img, console.log, qemu.log, qmp.sock, variables.fd of a firmware
//!             uploads/<id>.json      record: tags, and whether the file is complete
//!                     <id>.<format>  the image; never without the record
//!             templates/             saved memory that machines start from, for labels with `warm-template`
//!             images/                images of the operator, for `image-filters`
//!             accelerator.json       the result of the KVM trial
//! ```
//!
//! QEMU runs in a session of its own and outlives the driver. A process belongs to a machine if its id and start time are
//! those in the record or, if the driver was killed before it wrote them, if its command line names the machine; the
//! lock announces such a process before it has a command line. So the files are enough to find everything again.
//!
//! The driver decides what is done; [`QemuHost`] is the interface to files and processes, implemented by [`LocalHost`].

mod driver;
mod host;
mod kind;
mod local;
mod machine_spec;
mod options;

pub use driver::QemuDriver;
pub use host::{
    GuestEndpoint, GuestFault, LocalId, MachineStatus, QemuHost, QemuMachine, StopMethod,
    StoredUpload, UploadStatus,
};
pub use kind::{QemuKind, StateDir};
pub use local::{LocalHost, ProcessIdentity};
pub use machine_spec::{DiskFormat, Kernel, MachineSpec, Seed};
pub use nodeyard_driver_common::LabelImage;
pub use options::{
    Firmware, GuestAccess, GuestNetwork, Options, QemuCloudImageOptions, QemuDiskImageOptions,
    QemuImageChoice, QemuLabelOptions, QemuPoolOptions,
};
