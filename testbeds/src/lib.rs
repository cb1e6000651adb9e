//! Starts the real counterparts for tests.

pub mod gearman;
