//! `driver: qemu`: virtual machines on this host.
//!
//! A directory is the cloud. Each machine has a description in it, written before anything else of the machine
//! exists and removed after everything else, and a directory beside it with its disk, its seed and its console:
//!
//! ```text
//! <directory>/machines/<id>.json     whose it is, what it takes, which process runs it
//!                      <id>.lock     held by the process that runs it, from its first moment on
//!                      <id>/         disk.qcow2, seed.img, console.log, qemu.log, qmp.sock, variables.fd of a firmware
//!             uploads/<id>.json      an image of ours: whose it is, and whether it is complete
//!                     <id>.<format>  its bytes; never without the description
//!             templates/             saved memory that machines continue from, for labels with `warm-template`
//!             images/                files that an operator put there, for `image-filters`
//!             accelerator.json       what a trial of KVM came to
//! ```
//!
//! QEMU runs in a session of its own and outlives us. A process is taken for a machine's only if its start time
//! fits as well as its number, or, when we died before we could write these down, if its command line names the
//! machine; the lock tells that there will be such a process before it has a command line. So after the death of
//! either side everything is found again from the files alone.
//!
//! [`Host`] is the seam: what the driver decides is on this side of it, what happens to files and processes on the
//! other, in [`LocalHost`].

mod driver;
mod host;
mod local;
mod options;
mod recipe;

pub use driver::QemuDriver;
pub use host::{
    Answering, Endpoint, GuestFault, Host, LocalId, Machine, Stop, Upload, UploadStatus, Vitals,
};
pub use local::{LocalHost, ProcessIdentity};
pub use nodeyard_driver_common::LabelImage;
pub use options::{
    CloudImageOptions, DiskImageOptions, Firmware, ImageChoice, LabelOptions, Network, Options,
    PoolOptions, Reach,
};
pub use recipe::{DiskFormat, Kernel, Recipe, Seed};
