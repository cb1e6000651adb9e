//! Requests become servers of a real OpenStack, and images go there through gearman.
//!
//! The cloud has no hypervisor, so nobody logs in to the servers.

mod bed;
mod images;
mod leaks;
mod servers;
mod trouble;

pub(crate) use bed::cloud;
