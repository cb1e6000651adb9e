//! The command lines of all programs. What the commands do is in `commands`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::commands;
use crate::exit::EXIT_CODES_HELP;
use crate::output::{Color, Format};

/// Builds the images that CI machines boot from, and hands out those machines
///
/// Nodeyard reads Nodepool's configuration, speaks its contracts in ZooKeeper and gearman, and also runs
/// on one machine with nothing else installed. Called as `nodepool`, `nodepool-launcher` or
/// `nodepool-builder` it takes the command lines of those programs; `nodeyard install-links` makes the
/// links.
#[derive(Debug, Parser)]
#[command(name = "nodeyard", version, after_help = EXIT_CODES_HELP)]
pub struct Nodeyard {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: NodeyardCommand,
}

#[derive(Debug, Subcommand)]
pub enum NodeyardCommand {
    /// Run everything in this process, on the embedded store unless ZooKeeper is configured
    Up(commands::up::UpArgs),
    /// Check, show or describe the configuration
    Config(commands::config::ConfigArgs),
    /// Look into the store, or move its state to another backend
    Store(commands::store::StoreArgs),
    /// Make the links `nodepool`, `nodepool-launcher` and `nodepool-builder` to this program
    InstallLinks(commands::install_links::InstallLinksArgs),
    /// Print a completion script for a shell
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(commands::man::ManArgs),
}

/// Options of every `nodeyard` command.
#[derive(Debug, Args)]
pub struct Global {
    #[command(flatten)]
    pub files: Files,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t)]
    pub format: Format,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t)]
    pub color: Color,
    /// Log more to standard error; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Clone, Args)]
pub struct Files {
    /// Configuration file; without it /etc/nodepool/nodepool.yaml is read if it exists
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Second file with the parts of the configuration that others must not read
    #[arg(short, long, global = true, value_name = "FILE")]
    pub secure: Option<PathBuf>,
}

/// The Nodepool command line tool
#[derive(Debug, Parser)]
#[command(name = "nodepool", disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub struct Nodepool {
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub version: VersionFlag,
    /// Log everything to standard error
    #[arg(long)]
    pub debug: bool,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t)]
    pub format: Format,
    #[command(subcommand)]
    pub command: NodepoolCommand,
}

#[derive(Debug, Subcommand)]
pub enum NodepoolCommand {
    /// Check the configuration file; nothing is contacted
    ConfigValidate,
}

/// Options that `nodepool-launcher` and `nodepool-builder` share.
#[derive(Debug, Args)]
pub struct DaemonFlags {
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub version: VersionFlag,
    /// Stay in the foreground
    #[arg(short)]
    pub foreground: bool,
    /// Stay in the foreground and log everything
    #[arg(short)]
    pub debug: bool,
}

/// Takes node requests and hands out nodes
#[derive(Debug, Parser)]
#[command(name = "nodepool-launcher", disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub struct NodepoolLauncher {
    #[command(flatten)]
    pub daemon: DaemonFlags,
}

/// Builds and uploads images
#[derive(Debug, Parser)]
#[command(name = "nodepool-builder", disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub struct NodepoolBuilder {
    #[command(flatten)]
    pub daemon: DaemonFlags,
}

#[derive(Debug, Args)]
pub struct VersionFlag {
    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    version: (),
}
