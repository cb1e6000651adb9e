//! The built binary as a black box: what a person or a script sees.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod api;
mod awaited_image;
mod bed;
mod builder_pages;
mod builders;
mod cloud;
mod config;
mod container;
mod daemon;
mod dependencies;
mod drain;
mod ensemble;
mod explain;
mod first_minutes;
mod growing_up;
mod image;
mod init;
mod job_server;
mod killed_builders;
mod killed_images;
mod kubernetes;
mod look;
mod nodepool;
mod packaging;
mod pod;
mod programs;
mod published;
mod qemu;
mod request;
mod store;
mod store_faults;
mod terminal;
mod two_hosts;
mod up;
mod zuul_images;
