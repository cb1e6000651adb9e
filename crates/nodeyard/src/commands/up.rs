//! `nodeyard up`: everything in one process.

use std::path::PathBuf;

use clap::Args;
