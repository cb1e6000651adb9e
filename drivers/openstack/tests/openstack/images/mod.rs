//! Images on a real Glance, and on one that fails.
//!
//! Without a machine on which OpenStack can run they are skipped, loudly.

mod bed;
mod delete;
mod faults;
mod filters;
mod upload;
