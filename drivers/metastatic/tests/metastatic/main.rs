//! The driver on a table instead of a store: every fault of the kit, and the maintenance of backing nodes over time.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod kit;
mod maintenance;
mod random;
mod yard;
