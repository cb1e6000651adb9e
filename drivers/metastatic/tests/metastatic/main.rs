//! The driver on a table instead of a store: every fault of the kit, and the care of machines as time passes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod care;
mod life;
mod random;
mod yard;
