//! nodepool.yaml, read in two stages.
