//! Starts the real counterparts for tests.
