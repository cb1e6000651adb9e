//! What the commands do, a file for each group.

pub mod completions;
pub mod config;
pub mod daemon;
pub mod install_links;
pub mod man;
pub mod store;
pub mod up;
